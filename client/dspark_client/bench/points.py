"""One point of a benchmark: a policy at a level of load, from its samples of all repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dspark_client.bench.goals import Goodput
from dspark_client.bench.samples import Percentiles, Sample

PLAIN = "none"                       # the policy that all others are compared with
Pair = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """In the names of the result's JSON.

    Rates and times are medians over the repeats, spreads the least and the most of them, counts are summed over them.
    A ratio compares the tokens/s with those of `none` in the same repeat, at the same level and domain.
    """

    policy: str
    concurrency: int | None          # exactly one of concurrency and rate
    rate: float | None               # requests that arrive a second
    domain: str
    tokens_per_second: float         # in the steady window (samples.Sample)
    tokens_per_second_spread: Pair
    tokens_per_second_whole: float   # over the whole wall time, the running dry at the end included
    tokens_per_second_per_user: float
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    tau: float | None                # accepted tokens a round, bonus included; None without rounds
    verified_per_request: float | None                # draft tokens verified of one request in one round
    drafted_per_request: float | None
    ratio_to_none: float | None
    ratio_to_none_spread: Pair | None
    goodput: Goodput | None
    refused: int
    sequences_per_round: float | None                 # mean batch of a target step; these three: own servers only
    host_ms_per_round: float | None  # of a round's time, what is neither the draft's nor the verification's call
    calls_ms_per_round: float | None # of those calls' time, what the engines' models did not spend executing
    repeats: int


def summarise(samples: Sequence[Sample]) -> list[Point]:
    """The points that samples make, in the order in which they first come by level, domain and policy."""
    groups: dict[tuple[str, int | None, float | None, str], list[Sample]] = {}
    for sample in samples:
        run = sample.run
        groups.setdefault((run.policy, run.concurrency, run.rate, run.domain), []).append(sample)
    plain = {_place(sample): sample for sample in samples if sample.run.policy == PLAIN}
    return [_point(found, [_ratio_to(plain.get(_place(sample)), sample) for sample in found])
            for found in groups.values()]


def _place(sample: Sample) -> tuple[int | None, float | None, str, int]:
    run = sample.run
    return run.concurrency, run.rate, run.domain, run.repeat


def _ratio_to(plain: Sample | None, sample: Sample) -> float | None:
    if plain is None or not plain.tokens_per_second:
        return None
    return sample.tokens_per_second / plain.tokens_per_second


def _point(samples: Sequence[Sample], ratios: Sequence[float | None]) -> Point:
    run, rounds = samples[0].run, sum(sample.rounds for sample in samples)
    speeds = [sample.tokens_per_second for sample in samples]
    paired = [ratio for ratio in ratios if ratio is not None]
    counters = [sample.counters for sample in samples if sample.counters is not None]
    server_rounds = sum(found.rounds for found in counters)
    goodputs = [sample.goodput for sample in samples if sample.goodput is not None]

    def per_round(count: Callable[[Sample], int]) -> float | None:
        return _ratio(sum(map(count, samples)), rounds)

    return Point(
        policy=run.policy, concurrency=run.concurrency, rate=run.rate, domain=run.domain,
        tokens_per_second=_median(speeds), tokens_per_second_spread=_spread(speeds),
        tokens_per_second_whole=_median([sample.tokens_per_second_whole for sample in samples]),
        tokens_per_second_per_user=_median([sample.tokens_per_second_per_user for sample in samples]),
        ttft_ms=_middle([sample.ttft_ms for sample in samples]),
        itl_ms=_middle([sample.itl_ms for sample in samples]),
        tau=per_round(lambda sample: sample.rounds + sample.accepted),
        verified_per_request=per_round(lambda sample: sample.verified),
        drafted_per_request=per_round(lambda sample: sample.drafted),
        ratio_to_none=_median(paired, 4) if paired else None,
        ratio_to_none_spread=_spread(paired, 4) if paired else None,
        goodput=_middle_goodput(goodputs) if goodputs else None,
        refused=sum(sample.refused for sample in samples),
        sequences_per_round=_ratio(sum(found.sequences for found in counters), server_rounds),
        host_ms_per_round=_ratio(1e3 * sum(found.host_s for found in counters), server_rounds),
        calls_ms_per_round=_ratio(1e3 * sum(found.calls_s for found in counters), server_rounds),
        repeats=len(samples),
    )


def _middle(found: Sequence[Percentiles | None]) -> Percentiles | None:
    known = [each for each in found if each is not None]
    return Percentiles(_median([e.p50 for e in known]), _median([e.p99 for e in known])) if known else None


def _middle_goodput(found: Sequence[Goodput]) -> Goodput:
    return Goodput(
        _median([each.requests_per_second for each in found], 4), _median([each.tokens_per_second for each in found]),
        _median([each.share for each in found], 4),
    )


def _median(values: Sequence[float], digits: int = 2) -> float:
    return round(float(np.median(values)), digits)


def _spread(values: Sequence[float], digits: int = 2) -> Pair:
    return round(float(min(values)), digits), round(float(max(values)), digits)


def _ratio(of: float, to: float) -> float | None:
    return round(of / to, 4) if to else None
