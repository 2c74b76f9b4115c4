"""Costs that follow what served steps take."""

from __future__ import annotations

import numpy as np
import pytest
from curves import GAMMA, record_of
from dspark.scheduling.curve import ThroughputCurve
from dspark.scheduling.online import OnlineCosts
from hypothesis import given, settings
from hypothesis import strategies as st

CURVE = ThroughputCurve.of(record_of(), GAMMA)
CONTEXT = 200.0


def target(costs: OnlineCosts | ThroughputCurve, sequences: int, tokens: int) -> float:
    return float(costs.target_seconds(sequences, np.array([tokens]), CONTEXT)[0])


def serve(costs: OnlineCosts, steps: int, slowdown: float = 1.0, drafts: bool = True, seed: int = 0) -> None:
    """Steps of all sizes on a machine that is so much slower than the curve, with noise of 10 %."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        sequences = int(random.integers(1, 33))
        tokens = int(random.integers(sequences, sequences * (GAMMA + 1) + 1))
        noise = slowdown * random.lognormal(0, 0.1, 2)
        costs.observe_target(sequences, tokens, CONTEXT, noise[0] * target(CURVE, sequences, tokens))
        if drafts:
            costs.observe_drafter(sequences, noise[1] * CURVE.drafter_seconds(sequences))


def test_before_anything_is_served_the_curve_stands() -> None:
    costs = OnlineCosts(CURVE)
    tokens = np.arange(8, 65)
    np.testing.assert_array_equal(costs.target_seconds(8, tokens, CONTEXT), CURVE.target_seconds(8, tokens, CONTEXT))
    assert costs.drafter_seconds(8) == CURVE.drafter_seconds(8)


@pytest.mark.parametrize("slowdown", [2.0, 0.5])
def test_on_a_machine_that_is_uniformly_slower_all_costs_become_so(slowdown: float) -> None:
    costs = OnlineCosts(CURVE)
    serve(costs, 600, slowdown)
    for sequences, tokens in [(1, 1), (1, 8), (6, 20), (32, 32), (32, 256)]:
        assert target(costs, sequences, tokens) == pytest.approx(slowdown * target(CURVE, sequences, tokens), rel=0.05)
    assert costs.drafter_seconds(4) == pytest.approx(slowdown * CURVE.drafter_seconds(4), rel=0.05)


def test_sizes_and_the_engine_that_were_not_served_follow_the_common_part() -> None:
    costs = OnlineCosts(CURVE)
    for _ in range(600):
        costs.observe_target(4, 4, CONTEXT, 2 * target(CURVE, 4, 4))
    assert target(costs, 4, 4) == pytest.approx(2 * target(CURVE, 4, 4), rel=0.01)
    assert target(costs, 32, 256) > 1.5 * target(CURVE, 32, 256)
    assert costs.drafter_seconds(4) > 1.5 * CURVE.drafter_seconds(4)


def test_a_size_that_is_slower_than_the_rest_becomes_so() -> None:
    costs = OnlineCosts(CURVE)
    for _ in range(600):
        costs.observe_target(1, 1, CONTEXT, target(CURVE, 1, 1))
        costs.observe_target(16, 128, CONTEXT, 1.5 * target(CURVE, 16, 128))
        costs.observe_drafter(16, CURVE.drafter_seconds(16))
    assert target(costs, 16, 128) == pytest.approx(1.5 * target(CURVE, 16, 128), rel=0.05)
    assert target(costs, 1, 1) == pytest.approx(target(CURVE, 1, 1), rel=0.05)


@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_one_outlier_moves_the_costs_by_little(factor: float) -> None:
    costs = OnlineCosts(CURVE)
    serve(costs, 200)
    before = target(costs, 8, 64)
    costs.observe_target(8, 64, CONTEXT, factor * target(CURVE, 8, 64))
    assert target(costs, 8, 64) == pytest.approx(before, rel=0.02)
    assert target(costs, 8, 64) != before


def test_one_step_in_twenty_that_takes_ten_times_as_long_does_not_set_the_costs() -> None:
    costs = OnlineCosts(CURVE)
    for step in range(2000):
        costs.observe_target(8, 64, CONTEXT, (10.0 if step % 20 == 0 else 1.0) * target(CURVE, 8, 64))
    assert target(costs, 8, 64) == pytest.approx(target(CURVE, 8, 64), rel=0.05)


def test_a_machine_that_recovers_is_noticed() -> None:
    costs = OnlineCosts(CURVE)
    serve(costs, 400, slowdown=3.0)
    serve(costs, 600, slowdown=1.0, seed=1)
    assert target(costs, 8, 64) == pytest.approx(target(CURVE, 8, 64), rel=0.05)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    observed=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 600), st.floats(1e-4, 10.0)), min_size=1, max_size=60
    ),
    sequences=st.integers(1, 40),
)
def test_time_never_falls_with_tokens_whatever_was_observed(
    observed: list[tuple[int, int, float]], sequences: int
) -> None:
    costs = OnlineCosts(CURVE)
    for served, tokens, seconds in observed:
        for _ in range(20):
            costs.observe_target(served, tokens, CONTEXT, seconds)
    times = costs.target_seconds(sequences, np.arange(sequences, 600), CONTEXT)
    assert (np.diff(times) >= 0).all()
    assert np.isfinite(times).all()


def test_a_step_costs_the_same_whichever_steps_are_asked_about_with_it() -> None:
    costs = OnlineCosts(CURVE)
    for _ in range(300):
        costs.observe_target(8, 16, CONTEXT, 3 * target(CURVE, 8, 16))      # makes larger steps look cheaper
    together = costs.target_seconds(8, np.arange(8, 65), CONTEXT)
    alone = [target(costs, 8, tokens) for tokens in range(8, 65)]
    np.testing.assert_allclose(together, alone)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_changes_nothing(seconds: float) -> None:
    costs = OnlineCosts(CURVE)
    costs.observe_target(8, 64, CONTEXT, seconds)
    costs.observe_drafter(8, seconds)
    assert target(costs, 8, 64) == target(CURVE, 8, 64)
    assert costs.drafter_seconds(8) == CURVE.drafter_seconds(8)


def test_no_steps_to_price_have_no_prices() -> None:
    assert OnlineCosts(CURVE).target_seconds(4, np.zeros(0, np.int64), CONTEXT).size == 0
