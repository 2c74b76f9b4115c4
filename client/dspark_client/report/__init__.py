"""`dspark report`: results of `dspark bench`, perf_analyzer and genai-perf as one page."""

from dspark_client.report.measured import Measured, Source
from dspark_client.report.page import render, write_report
from dspark_client.report.sources import read_sources

__all__ = ["Measured", "Source", "read_sources", "render", "write_report"]
