"""One point of a benchmark: a policy at a concurrency, from several runs of the same load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark_client.load import Answer, LoadResult
from dspark_client.metrics import read_metrics

METRICS_TIMEOUT_S = 10.0
FLUSHED_S = 1.0                      # the server's counters follow its rounds after a quarter of a second
ROUNDS, SEQUENCES = "dspark_rounds_total", "dspark_round_sequences_total"
HOST_SECONDS = "dspark_host_seconds_total"
CALL_SECONDS = ("dspark_draft_seconds_total", "dspark_verify_seconds_total")
ENGINES = ("drafter", "target")
ENGINE_MICROSECONDS = "nv_inference_compute_infer_duration_us"


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Point:
    """In the names of the result's JSON; rates are medians over `repeats`, times pool all of them."""

    policy: str
    concurrency: int
    domain: str
    tokens_per_second: float
    tokens_per_second_per_user: float
    ttft_ms: Percentiles             # from the client's sending to the first token
    itl_ms: Percentiles              # time between tokens, those of one response sharing its time
    tau: float | None                # accepted tokens a round, bonus included; None without rounds
    verified_per_request: float | None                # draft tokens verified of one request in one round
    sequences_per_round: float       # mean batch of a target step
    host_ms_per_round: float         # of a round's time, what is neither the draft's nor the verification's call
    calls_ms_per_round: float        # of those calls' time, what the engines' models did not spend executing
    repeats: int


@dataclass(frozen=True)
class Sample:
    """One run of a load, and how the server's counters grew meanwhile."""

    result: LoadResult
    rounds: float
    sequences: float                 # in target steps, summed over rounds
    host_s: float
    calls_s: float


def measure_sample(metrics_address: str, load: Callable[[], LoadResult]) -> Sample:
    """Run a load between two readings of the server's metrics."""
    before = _counters(metrics_address)
    result = load()
    time.sleep(FLUSHED_S)
    return Sample(result, *(_counters(metrics_address) - before).tolist())


def _counters(metrics_address: str) -> npt.NDArray[np.float64]:
    """Rounds, sequences, host seconds, and seconds of the calls beyond those of the engines."""
    values = read_metrics(metrics_address, METRICS_TIMEOUT_S)
    engines_us = sum(
        read_metrics(metrics_address, METRICS_TIMEOUT_S, model=engine).get(ENGINE_MICROSECONDS, 0.0)
        for engine in ENGINES
    )
    calls_s = sum(values.get(name, 0.0) for name in CALL_SECONDS)
    own = [values.get(name, 0.0) for name in (ROUNDS, SEQUENCES, HOST_SECONDS)]
    return np.array([*own, calls_s - 1e-6 * engines_us])


def summarise(policy: str, concurrency: int, samples: Sequence[Sample]) -> Point:
    """The point that several samples of one load make."""
    answers = [answer for sample in samples for answer in sample.result.answers]
    rounds = sum(answer.statistics["rounds"] for answer in answers)
    server_rounds = sum(sample.rounds for sample in samples)
    return Point(
        policy=policy, concurrency=concurrency, domain="all",
        tokens_per_second=_median([sample.result.tokens / sample.result.wall_s for sample in samples]),
        tokens_per_second_per_user=_median([len(answer.token_ids) / answer.total_s for answer in answers]),
        ttft_ms=_percentiles([1e3 * answer.first_s for answer in answers]),
        itl_ms=_percentiles([gap for answer in answers for gap in _gaps_ms(answer)]),
        tau=_ratio(rounds + sum(answer.statistics["accepted"] for answer in answers), rounds),
        verified_per_request=_ratio(sum(answer.statistics["verified"] for answer in answers), rounds),
        sequences_per_round=_ratio(sum(sample.sequences for sample in samples), server_rounds) or 0.0,
        host_ms_per_round=_ratio(1e3 * sum(sample.host_s for sample in samples), server_rounds) or 0.0,
        calls_ms_per_round=_ratio(1e3 * sum(sample.calls_s for sample in samples), server_rounds) or 0.0,
        repeats=len(samples),
    )


def _gaps_ms(answer: Answer) -> list[float]:
    """Milliseconds between successive tokens; a response of n tokens counts n times with an n-th of its gap."""
    gaps: list[float] = []
    for before, now, tokens in zip(answer.times, answer.times[1:], answer.tokens_at[1:], strict=False):
        gaps.extend([1e3 * (now - before) / tokens] * tokens)
    return gaps


def _median(values: Sequence[float]) -> float:
    return round(float(np.median(values)), 2)


def _percentiles(values: Sequence[float]) -> Percentiles:
    middle, high = np.percentile(values or [0.0], [50, 99])
    return Percentiles(round(float(middle), 2), round(float(high), 2))


def _ratio(of: float, to: float) -> float | None:
    return round(of / to, 4) if to else None
