"""From answers to figures: windows, latencies, goals, ratios."""

from __future__ import annotations

import pytest
from bench_fakes import answer
from dspark_client.bench import Goals, Percentiles, Run, Sample, steady_window, summarise, summarise_load
from dspark_client.load import LoadResult

RUN = Run("none", 2, None, "all", 0)
OPEN = Run("none", None, 1.0, "all", 0)


def sample(policy: str, repeat: int, tokens_per_second: float, rounds: int = 10, accepted: int = 0) -> Sample:
    return Sample(
        run=Run(policy, 4, None, "all", repeat), requests=1, refused=0, tokens=10, wall_s=1.0, window_s=1.0,
        tokens_per_second=tokens_per_second, tokens_per_second_whole=tokens_per_second / 2,
        tokens_per_second_per_user=tokens_per_second / 4, ttft_ms=Percentiles(repeat, 10 + repeat), itl_ms=None,
        rounds=rounds, drafted=0, verified=2 * accepted, accepted=accepted,
    )


def test_the_steady_window_ends_when_fewer_requests_than_the_concurrency_are_in_flight() -> None:
    result = LoadResult([answer(0, [1, 2]), answer(0, [3]), answer(2, [1, 4])], wall_s=6.0)
    assert steady_window(result, 2) == 3.0             # the second ends at 3, and none is left to take its place
    assert steady_window(result, 1) == 6.0
    assert steady_window(result, 3) == 2.0


def test_tokens_a_second_count_what_came_within_the_window() -> None:
    found = summarise_load(RUN, LoadResult([answer(0, [1, 2]), answer(0, [3], [3]), answer(2, [1, 4])], wall_s=6.0))
    assert found.tokens == 7 and found.window_s == 3.0
    assert found.tokens_per_second == 2.0              # at 1, 2, 3 (three tokens) and 3, but not at 6
    assert found.tokens_per_second_whole == round(7 / 6, 2)


def test_an_open_loop_is_steady_until_its_last_arrival() -> None:
    result = LoadResult([answer(0, [1, 2]), answer(1.5, [2])], wall_s=3.5)
    assert summarise_load(OPEN, result).window_s == 1.5
    assert summarise_load(OPEN, LoadResult([answer(0, [1, 2])], wall_s=2.0)).tokens_per_second == 1.0


def test_tokens_of_one_response_share_the_time_since_the_one_before() -> None:
    found = summarise_load(RUN, LoadResult([answer(0, [0.1, 0.5], [1, 4])], 1.0))
    assert found.ttft_ms == Percentiles(100.0, 100.0) and found.itl_ms == Percentiles(100.0, 100.0)


def test_goodput_counts_the_requests_that_met_both_goals() -> None:
    quick, late, slow = answer(0, [0.1, 0.2]), answer(0, [0.9, 1.0]), answer(0, [0.1, 1.1])
    found = Goals(ttft_ms=500, itl_ms=200).goodput([quick, late, slow], refused=1, wall_s=2.0)
    assert found is not None
    assert (found.requests_per_second, found.tokens_per_second, found.share) == (0.5, 1.0, 0.25)
    assert Goals(ttft_ms=500).goodput([quick, late, slow], 0, 2.0).requests_per_second == 1.0
    assert Goals().goodput([quick], 0, 1.0) is None


def test_a_whole_answer_at_once_has_no_time_between_tokens() -> None:
    assert Goals(itl_ms=1.0).met(answer(0, [5.0], [64]))


def test_a_point_has_the_median_and_the_spread_of_its_repeats() -> None:
    (point,) = summarise([sample("none", repeat, speed) for repeat, speed in enumerate((30.0, 10.0, 11.0))])
    assert point.tokens_per_second == 11.0 and point.tokens_per_second_spread == (10.0, 30.0)
    assert point.tokens_per_second_whole == 5.5 and point.ttft_ms == Percentiles(1.0, 11.0)
    assert point.repeats == 3 and point.ratio_to_none == 1.0


def test_ratios_are_paired_with_none_of_the_same_repeat() -> None:
    samples = [
        sample(policy, repeat, speed)
        for repeat, speeds in enumerate(((10.0, 20.0), (20.0, 30.0), (40.0, 40.0)))
        for policy, speed in zip(("none", "full"), speeds, strict=True)
    ]
    point = summarise(samples)[1]
    assert point.policy == "full"
    assert point.ratio_to_none == 1.5 and point.ratio_to_none_spread == (1.0, 2.0)     # not 30 / 20 of the medians


def test_a_repeat_without_none_has_no_ratio() -> None:
    assert summarise([sample("full", 0, 10.0)])[0].ratio_to_none is None
    point = summarise([sample("none", 0, 10.0), sample("full", 0, 20.0), sample("full", 1, 90.0)])[1]
    assert point.ratio_to_none == 2.0 and point.repeats == 2


def test_counts_are_those_of_all_repeats_together() -> None:
    (point,) = summarise([sample("full", 0, 1.0, rounds=10, accepted=20), sample("full", 1, 1.0, rounds=30)])
    assert point.tau == 1.5 and point.verified_per_request == 1.0


def test_a_policy_without_rounds_has_no_tau() -> None:
    assert summarise([sample("none", 0, 1.0, rounds=0)])[0].tau is None


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_a_load_without_a_token_has_no_latency(concurrency: int) -> None:
    run = Run("none", concurrency, None, "all", 0)
    found = summarise_load(run, LoadResult([answer(0, [])], 2.0))
    assert found.ttft_ms is None and found.itl_ms is None and found.tokens_per_second == 0.0
