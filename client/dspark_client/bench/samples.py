"""One sample: the figures of one run of a load, under one policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark_client.bench.counters import Counters
from dspark_client.bench.goals import Goals, Goodput
from dspark_client.bench.plan import Run
from dspark_client.load import Answer, LoadResult


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Sample:
    """In the names of the result's JSON.

    The steady window goes from the beginning to the moment when the load begins to run dry: when fewer requests than
    the concurrency are in flight for good, or, in an open loop, when the last one arrives.
    """

    run: Run
    requests: int                    # answered
    refused: int                     # by a full queue, in an open loop
    tokens: int
    wall_s: float
    window_s: float
    tokens_per_second: float         # in the steady window
    tokens_per_second_whole: float   # over the whole wall time
    tokens_per_second_per_user: float                 # median over requests, from sending to the last token
    ttft_ms: Percentiles | None      # from the client's sending to the first token
    itl_ms: Percentiles | None       # time between tokens, those of one response sharing its time
    rounds: int                      # these four summed over requests: a round of one request is one verification
    drafted: int
    verified: int
    accepted: int
    goodput: Goodput | None = None
    counters: Counters | None = None


def summarise_load(
    run: Run, result: LoadResult, goals: Goals | None = None, counters: Counters | None = None,
) -> Sample:
    """The sample that a load's answers make."""
    goals = goals or Goals()
    answers = [answer for answer in result.answers if answer.times]
    window_s = steady_window(result, run.concurrency)
    in_window = sum(
        tokens
        for answer in answers
        for at, tokens in zip(answer.times, answer.tokens_at, strict=True)
        if answer.sent_s + at <= window_s
    )
    rounds, drafted, verified, accepted = (
        sum(int(answer.statistics.get(name, 0)) for answer in answers)
        for name in ("rounds", "drafted", "verified", "accepted")
    )
    return Sample(
        run=run, requests=len(result.answers), refused=result.refused, tokens=result.tokens,
        wall_s=round(result.wall_s, 4), window_s=round(window_s, 4),
        tokens_per_second=_rate(in_window, window_s),
        tokens_per_second_whole=_rate(result.tokens, result.wall_s),
        tokens_per_second_per_user=_median([len(answer.token_ids) / answer.total_s for answer in answers]),
        ttft_ms=percentiles([1e3 * answer.first_s for answer in answers]),
        itl_ms=percentiles([gap for answer in answers for gap in gaps_ms(answer)]),
        rounds=rounds, drafted=drafted, verified=verified, accepted=accepted,
        goodput=goals.goodput(result.answers, result.refused, result.wall_s), counters=counters,
    )


def steady_window(result: LoadResult, concurrency: int | None) -> float:
    """Seconds from the beginning of a load until it begins to run dry (see Sample); None is an open loop."""
    answers = [answer for answer in result.answers if answer.times]
    if not answers:
        return result.wall_s
    if concurrency is None:
        last = max(answer.sent_s for answer in answers)
        return last if last > 0 else result.wall_s
    ends = sorted(answer.sent_s + answer.total_s for answer in answers)
    return ends[max(0, len(ends) - concurrency)]


def gaps_ms(answer: Answer) -> list[float]:
    """Milliseconds between successive tokens; a response of n tokens counts n times with an n-th of its gap."""
    gaps: list[float] = []
    for before, now, tokens in zip(answer.times, answer.times[1:], answer.tokens_at[1:], strict=False):
        gaps.extend([1e3 * (now - before) / tokens] * tokens)
    return gaps


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """None of nothing."""
    if not values:
        return None
    middle, high = np.percentile(values, [50, 99])
    return Percentiles(round(float(middle), 2), round(float(high), 2))


def _median(values: Sequence[float]) -> float:
    return round(float(np.median(values)), 2) if values else 0.0


def _rate(of: float, seconds: float) -> float:
    return round(of / seconds, 2) if seconds > 0 else 0.0
