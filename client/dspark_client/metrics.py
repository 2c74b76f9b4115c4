"""Triton's metrics page, as numbers."""

from __future__ import annotations

import re
import urllib.request
from collections import defaultdict

SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))     # a proxy does not reach this machine's ports
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_metrics(address: str, timeout_s: float, **labels: str) -> dict[str, float]:
    """The value of every metric, summed over the samples that have these labels. Raises OSError when unreachable."""
    with DIRECT.open(f"http://{address}/metrics", timeout=timeout_s) as answer:
        return parse_metrics(answer.read().decode(), **labels)


def parse_metrics(page: str, **labels: str) -> dict[str, float]:
    """The same, of a page in Prometheus' text format."""
    values: dict[str, float] = defaultdict(float)
    for sample in SAMPLE.finditer(page):
        found = dict(LABEL.findall(sample["labels"] or ""))
        if labels.items() <= found.items():
            values[sample["name"]] += float(sample["value"])
    return dict(values)
