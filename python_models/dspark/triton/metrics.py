"""Prometheus metrics of the rounds, on Triton's own metrics port (architecture, "Observability")."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from dspark.orchestrator import RoundReport

CLOSE_TIMEOUT_S = 1.0
FLUSH_S = 0.25                       # every update is a message between processes: gathered, and off the loop's thread
SECONDS_TO_FIRST_TOKEN = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]
SECONDS_BETWEEN_TOKENS = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]

COUNTERS = {                         # field of RoundReport: metric, description
    "sequences": ("dspark_round_sequences_total", "Sequences in target steps, summed over rounds"),
    "prefill_tokens": ("dspark_prefill_tokens_total", "Prompt tokens read"),
    "drafted": ("dspark_drafted_tokens_total", "Tokens drafted"),
    "verified": ("dspark_verified_tokens_total", "Draft tokens verified"),
    "accepted": ("dspark_accepted_tokens_total", "Draft tokens accepted"),
    "acceptable": ("dspark_acceptable_tokens_total", "Draft tokens accepted, also beyond a diagnosed window"),
    "lookup_verified": ("dspark_lookup_verified_tokens_total", "Draft tokens from prompt lookup verified"),
    "lookup_accepted": ("dspark_lookup_accepted_tokens_total", "Draft tokens from prompt lookup accepted"),
    "output_tokens": ("dspark_output_tokens_total", "Tokens sent to clients"),
    "draft_seconds": ("dspark_draft_seconds_total", "Time in drafter steps"),
    "verify_seconds": ("dspark_verify_seconds_total", "Time in target steps"),
    "host_seconds": ("dspark_host_seconds_total", "Time of rounds outside the two engines"),
}
GAUGES = {
    "active": ("dspark_active_sequences", "Sequences that hold a slot"),
    "waiting": ("dspark_waiting_sequences", "Requests that wait for a slot"),
    "kv_blocks_used": ("dspark_kv_blocks_in_use", "KV blocks reserved"),
    "verified": ("dspark_verification_budget", "Draft tokens verified in the last round"),
    "parted": ("dspark_confidence_parted_positions", "Positions where acceptance has parted from confidence"),
}
BY_POSITION = {
    "verified_at": ("dspark_verified_by_position_total", "Draft tokens verified, by position in the block"),
    "predicted_at": ("dspark_predicted_survival_total", "Predicted survival of verified tokens, summed, by position"),
    "observed_at": ("dspark_observed_survival_total", "Verified tokens that survived, by position"),
}


class RoundMetrics:
    """Takes reports from the loop's thread and passes them on from a thread of its own."""

    def __init__(self, gamma: int, profiled: bool) -> None:
        self._lock = threading.Lock()
        self._reports: list[RoundReport] = []
        self._families: list[Any] = []       # a family that is collected takes its metrics with it
        kinds = pb_utils.MetricFamily
        self._rounds = self._metric("dspark_rounds_total", "Rounds", kinds.COUNTER)
        self._profiled = self._metric(
            "dspark_profiled", "1: the policy has the throughput curve that it needs; 0: served unprofiled", kinds.GAUGE
        )
        self._profiled.set(float(profiled))
        self._counters = {name: self._metric(*about, kinds.COUNTER) for name, about in COUNTERS.items()}
        self._gauges = {name: self._metric(*about, kinds.GAUGE) for name, about in GAUGES.items()}
        self._by_position = {name: self._positions(*about, gamma) for name, about in BY_POSITION.items()}
        self._first = self._metric(
            "dspark_time_to_first_token_seconds", "Arrival to first token", kinds.HISTOGRAM, SECONDS_TO_FIRST_TOKEN
        )
        self._between = self._metric(
            "dspark_time_between_tokens_seconds", "Time between tokens", kinds.HISTOGRAM, SECONDS_BETWEEN_TOKENS
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dspark-metrics", daemon=True)
        self._thread.start()

    def report(self, report: RoundReport) -> None:
        with self._lock:
            self._reports.append(report)

    def close(self) -> None:
        """Stop; a server that goes away may never take what is left."""
        self._stop.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_S):
            with self._lock:
                reports, self._reports = self._reports, []
            if reports:
                self._flush(reports)

    def _flush(self, reports: list[RoundReport]) -> None:
        self._rounds.increment(len(reports))
        for name, counter in self._counters.items():
            _add(counter, sum(getattr(report, name) for report in reports))
        for name, gauge in self._gauges.items():
            gauge.set(getattr(reports[-1], name))
        for name, counters in self._by_position.items():
            grown = np.sum([getattr(report, name) for report in reports], axis=0)
            for counter, growth in zip(counters, grown.tolist(), strict=True):
                _add(counter, growth)
        for report in reports:
            for seconds in report.first_token_seconds:
                self._first.observe(seconds)
            for seconds in report.token_gap_seconds:
                self._between.observe(seconds)

    def _metric(self, name: str, description: str, kind: Any, buckets: list[float] | None = None) -> Any:
        family = self._family(name, description, kind)
        return family.Metric(labels={}) if buckets is None else family.Metric(labels={}, buckets=buckets)

    def _positions(self, name: str, description: str, gamma: int) -> list[Any]:
        family = self._family(name, description, pb_utils.MetricFamily.COUNTER)
        return [family.Metric(labels={"position": str(k + 1)}) for k in range(gamma)]

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family


def _add(counter: Any, growth: float) -> None:
    if growth > 0:
        counter.increment(growth)
