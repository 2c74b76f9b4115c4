"""genai-perf's summary, `profile_export_genai_perf.json`: one configuration's statistics, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark_client.bench.samples import Percentiles
from dspark_client.report.measured import ALL_DOMAINS, Measured, Source

THROUGHPUT, PER_USER = "output_token_throughput", "output_token_throughput_per_user"
FIRST, BETWEEN = "time_to_first_token", "inter_token_latency"
MILLISECONDS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}


def is_genai_perf(document: Any) -> bool:
    """Whether a document is such a summary; AIPerf's, its successor's, has the same form."""
    return isinstance(document, dict) and isinstance(document.get(THROUGHPUT), dict) and FIRST in document


def read_genai_perf(document: Mapping[str, Any], name: str) -> Source:
    """Raises KeyError, TypeError or ValueError for a document that lacks what it must have."""
    options = document.get("input_config", {})
    concurrency, rate = _find(options, "concurrency"), _find(options, "request_rate")
    between = _percentiles(document.get(BETWEEN))
    per_user = document.get(PER_USER, {}).get("avg")
    if per_user is None and between is not None and between.p50:
        per_user = round(1e3 / between.p50, 2)
    return Source(name, "genai-perf", (Measured(
        source=name, series=f"genai-perf ({name})",
        concurrency=None if concurrency is None else int(concurrency), rate=rate, domain=ALL_DOMAINS,
        tokens_per_second=float(document[THROUGHPUT]["avg"]), tokens_per_second_per_user=per_user,
        ttft_ms=_percentiles(document[FIRST]), itl_ms=between,
    ),))


def _percentiles(statistic: Mapping[str, Any] | None) -> Percentiles | None:
    """In milliseconds; older versions have no p50, whose place the mean takes."""
    if statistic is None:
        return None
    scale = MILLISECONDS[statistic.get("unit", "ms")]
    middle = statistic["p50"] if "p50" in statistic else statistic["avg"]
    return Percentiles(round(scale * float(middle), 2), round(scale * float(statistic["p99"]), 2))


def _find(options: Any, name: str) -> float | None:
    """The first number of that name among nested options; versions differ in where it is."""
    if isinstance(options, dict):
        value = options.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        options = list(options.values())
    if isinstance(options, list):
        return next((found for option in options if (found := _find(option, name)) is not None), None)
    return None
