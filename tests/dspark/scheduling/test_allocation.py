"""Load-aware allocation against brute force."""

import itertools

import numpy as np
import pytest
from dspark.errors import ConfigurationError
from dspark.scheduling import allocate, best_budget, causal_greedy, stale_budget
from hypothesis import given, settings
from hypothesis import strategies as st

properties = settings(max_examples=80, deadline=None, derandomize=True)


@st.composite
def batches(draw):
    """survival [R, gamma], limits [R] and a throughput curve that reaches every admissible draft."""
    requests, gamma = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    # Few distinct confidences, so that ties between and within requests are common.
    confidence = st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0])
    rows = draw(st.lists(st.lists(confidence, min_size=gamma, max_size=gamma), min_size=requests, max_size=requests))
    limits = draw(st.lists(st.integers(0, gamma), min_size=requests, max_size=requests))
    speeds = st.floats(0.05, 1.0)
    curve = draw(st.lists(speeds, min_size=requests * gamma + 1, max_size=requests * gamma + 1))
    return np.cumprod(rows, axis=1), np.array(limits, np.int32), np.array(curve)


def all_lengths(limits):
    return itertools.product(*(range(limit + 1) for limit in limits))


def gain(survival, lengths):
    return sum(row[:length].sum() for row, length in zip(survival, lengths, strict=True))


def throughput(survival, lengths, curve):
    return (len(lengths) + gain(survival, lengths)) * curve[sum(lengths)]


@properties
@given(batches(), st.integers(0, 9))
def test_for_a_fixed_budget_no_allocation_expects_more_tokens(batch, budget):
    survival, limits, _ = batch
    budget = min(budget, int(limits.sum()))
    lengths = allocate(survival, limits, budget)
    assert lengths.dtype == np.int32
    assert lengths.sum() == budget
    best = max(gain(survival, other) for other in all_lengths(limits) if sum(other) == budget)
    assert gain(survival, lengths) == pytest.approx(best, abs=1e-12)


@properties
@given(batches())
def test_while_confidences_stand_still_the_stale_budget_is_the_exhaustive_optimum(batch):
    survival, limits, curve = batch
    best = max(throughput(survival, lengths, curve) for lengths in all_lengths(limits))
    lengths = stale_budget(survival, survival, limits, curve)
    assert throughput(survival, lengths, curve) == pytest.approx(best, abs=1e-12)


@properties
@given(batches(), batches())
def test_limits_are_never_exceeded(batch, other):
    survival, limits, curve = batch
    stale = np.resize(other[0], survival.shape)
    stale = np.minimum.accumulate(stale, axis=1)
    for lengths in (causal_greedy(survival, limits, curve), stale_budget(stale, survival, limits, curve)):
        assert ((lengths >= 0) & (lengths <= limits)).all()


@properties
@given(batches())
def test_causal_greedy_climbs_one_draft_at_a_time_to_the_first_that_does_not_pay(batch):
    survival, limits, curve = batch
    admitted = int(causal_greedy(survival, limits, curve).sum())
    path = [throughput(survival, allocate(survival, limits, n), curve) for n in range(int(limits.sum()) + 1)]
    assert all(after > before - 1e-12 for before, after in itertools.pairwise(path[: admitted + 1]))
    assert admitted == limits.sum() or path[admitted + 1] <= path[admitted] + 1e-12


@properties
@given(batches())
def test_the_budget_only_depends_on_the_stale_round(batch):
    survival, limits, curve = batch
    stale = np.cumprod(np.full(survival.shape, 0.7), axis=1)
    assert stale_budget(stale, survival, limits, curve).sum() == best_budget(stale, limits, curve)


def test_equal_survivals_are_admitted_by_position_before_request():
    survival, limits = np.full((2, 2), 0.5), np.array([2, 2], np.int32)
    assert [allocate(survival, limits, n).tolist() for n in range(5)] == [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2]]


def test_a_ledge_stops_the_causal_walk_but_not_the_stale_search():
    survival, limits = np.array([[0.9, 0.9 * 0.9]]), np.array([2], np.int32)
    staircase = np.array([1.0, 0.5, 0.5])
    assert causal_greedy(survival, limits, staircase).tolist() == [0]
    assert stale_budget(survival, survival, limits, staircase).tolist() == [2]


def test_a_flat_curve_admits_everything_and_a_steep_one_nothing():
    survival, limits = np.array([[0.5, 0.1], [0.2, 0.2]]), np.array([2, 1], np.int32)
    for rule in (causal_greedy, lambda a, limits, curve: stale_budget(a, a, limits, curve)):
        assert rule(survival, limits, np.ones(4)).tolist() == [2, 1]
        assert rule(survival, limits, 0.5 ** np.arange(4)).tolist() == [0, 0]


def test_a_batch_without_requests_has_no_lengths():
    nothing = np.empty((0, 3)), np.empty(0, np.int32)
    assert causal_greedy(*nothing, np.ones(1)).shape == (0,)
    assert stale_budget(nothing[0], *nothing, np.ones(1)).shape == (0,)


def test_a_curve_that_ends_too_early_is_refused():
    with pytest.raises(ConfigurationError, match="reaches 2 draft tokens in a step, 3 may be admitted"):
        causal_greedy(np.full((1, 3), 0.5), np.array([3], np.int32), np.ones(3))
