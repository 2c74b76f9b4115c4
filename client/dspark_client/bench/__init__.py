"""`dspark bench`: policies compared on one server over levels of load, and the server against the bare engine."""

from dspark_client.bench.goals import Goals, Goodput
from dspark_client.bench.plan import Level, LoadSize, Run, domains_of, plan_runs, requests_of
from dspark_client.bench.points import PLAIN, Point, summarise
from dspark_client.bench.record import SweepFile, SweepReport, SweepSettings, to_json, write_atomically
from dspark_client.bench.samples import Percentiles, Sample, steady_window, summarise_load
from dspark_client.bench.sweep import Bench, measure, prompts_hash, run_sweep, switch_policy

__all__ = [
    "PLAIN",
    "Bench",
    "Goals",
    "Goodput",
    "Level",
    "LoadSize",
    "Percentiles",
    "Point",
    "Run",
    "Sample",
    "SweepFile",
    "SweepReport",
    "SweepSettings",
    "domains_of",
    "measure",
    "plan_runs",
    "prompts_hash",
    "requests_of",
    "run_sweep",
    "steady_window",
    "summarise",
    "summarise_load",
    "switch_policy",
    "to_json",
    "write_atomically",
]
