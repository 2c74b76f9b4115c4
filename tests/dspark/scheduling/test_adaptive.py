"""The load-aware policy on costs of known shape."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dspark.scheduling import Batch, make_policy
from dspark.scheduling.adaptive import EXPLORATION, RULES
from dspark.scheduling.allocation import convex_minorant
from hypothesis import given, settings
from hypothesis import strategies as st

GAMMA = 4
properties = settings(max_examples=60, deadline=None, derandomize=True)


class Costs:
    """`fixed` seconds a target step and `token` a token of it; `block` seconds a drafter step, `each` a sequence."""

    def __init__(self, fixed=10.0, token=1.0, block=3.0, each=0.0):
        self.fixed, self.token, self.block, self.each = fixed, token, block, each

    def target_seconds(self, sequences, tokens, context):
        return self.fixed + self.token * tokens.astype(float)

    def drafter_seconds(self, sequences):
        return self.block + self.each * sequences


def batch(expected=0.8, lookup=0.0, requests=1, limits=GAMMA, floors=0, blocks=1, **riding):
    """`requests` alike sequences; a lookup draft of the whole length where its acceptance is above 0."""
    def rows(conditional):
        return np.tile(np.cumprod(np.broadcast_to(conditional, GAMMA)), (requests, 1))

    return Batch(
        limits=np.full(requests, limits, np.int32), floors=np.full(requests, floors, np.int32), lookup=rows(lookup),
        lookup_lengths=np.full(requests, GAMMA if lookup else 0, np.int32), expected=rows(expected),
        blocks=np.full(requests, blocks, np.int32), context=100.0, **riding,
    )


def lengths(plan, survival, limits=GAMMA):
    return plan.rule.lengths(survival, np.full(len(survival), limits, np.int32))


@pytest.mark.parametrize("rule", RULES)
def test_it_drafts_where_drafts_pay_and_verifies_more_of_likelier_ones(rule):
    policy = make_policy(f"adaptive:{rule}", GAMMA, Costs())
    plan = policy.plan(batch(0.8))
    assert plan.drafter.all() and not plan.lookup.any()
    assert lengths(plan, batch(0.95).expected) == [GAMMA]
    if rule != "stale":                              # its number is fixed beforehand
        assert lengths(plan, batch([0.9, 0.01, 0.9, 0.9]).expected) == [1]


def test_it_does_not_draft_where_a_block_costs_more_than_it_brings():
    dear = make_policy("adaptive", GAMMA, Costs(block=60.0))
    assert not dear.plan(batch(0.8)).drafter.any()
    hopeless = make_policy("adaptive", GAMMA, Costs())
    assert not hopeless.plan(batch(0.05)).drafter.any()


def test_a_gain_within_the_margin_is_not_worth_a_change():
    # one draft of survival a at 1 s more: Theta = (1 + a) / (11 + block + 1) against 1 / 11
    block = 11 * 1.5 - 12
    assert not make_policy("adaptive", GAMMA, Costs(block=block - 0.1)).plan(batch([0.5, 0, 0, 0])).drafter.any()
    assert make_policy("adaptive", GAMMA, Costs(block=block - 0.6)).plan(batch([0.5, 0, 0, 0])).drafter.any()


def test_the_budget_falls_with_load():
    """More sequences fill the step, so that a draft costs a larger share of its time."""
    policy = make_policy("adaptive", GAMMA, Costs(fixed=20.0, token=1.0, block=1.0))
    verified = []
    for requests in (1, 4, 16, 64):
        plan = policy.plan(batch(0.7, requests=requests))
        drafted = batch(0.7, requests=requests).expected * plan.drafter[:, None]
        verified.append(lengths(plan, drafted).sum() / requests)
    assert verified[0] > verified[-1] and all(a >= b for a, b in itertools.pairwise(verified))


def test_a_confident_lookup_makes_the_drafter_superfluous_and_a_poor_one_does_not():
    policy = make_policy("adaptive+lookup", GAMMA, Costs())
    plan = policy.plan(batch(0.8, lookup=0.9))
    assert plan.lookup.all() and not plan.drafter.any()
    assert policy.plan(batch(0.8, lookup=0.2)).drafter.all()


def test_of_a_mixed_batch_only_those_are_drafted_for_whose_blocks_pay():
    some = batch(requests=4)
    expected = np.cumprod(np.tile([[0.9], [0.02], [0.9], [0.02]], (1, GAMMA)), axis=1)
    mixed = Batch(**{**vars(some), "expected": expected})
    plan = make_policy("adaptive", GAMMA, Costs(each=1.0)).plan(mixed)
    assert plan.drafter.tolist() == [True, False, True, False]


def test_exploration_spends_a_bounded_share_of_the_time():
    costs = Costs(block=2.0)
    policy = make_policy("adaptive", GAMMA, costs)
    hopeless = batch(0.01, blocks=5)
    tries = sum(policy.plan(hopeless).drafter.any() for _ in range(2000))
    spent = tries * (costs.block + costs.token)
    assert 0 < spent <= 1.2 * EXPLORATION * 2000 * (costs.fixed + costs.token)


def test_exploration_looks_at_the_sequence_seen_least_and_verifies_something():
    policy = make_policy("adaptive", GAMMA, Costs())
    hopeless = Batch(**{**vars(batch(0.01, requests=3)), "blocks": np.array([5, 2, 9], np.int32)})
    plan = next(plan for plan in (policy.plan(hopeless) for _ in range(5000)) if plan.drafter.any())
    assert plan.drafter.tolist() == [False, True, False] and plan.floors.tolist() == [0, 1, 0]


def test_prompts_that_ride_along_make_drafts_cheaper_in_comparison():
    """The step takes long anyway: its fixed part is paid by the prompts, so a block's own time counts for less."""
    costs = Costs(fixed=10.0, token=0.1, block=12.0)
    assert not make_policy("adaptive", GAMMA, costs).plan(batch(0.5)).drafter.any()
    riding = batch(0.5, riding_sequences=1, riding_tokens=400)
    assert make_policy("adaptive", GAMMA, costs).plan(riding).drafter.any()


@properties
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_the_convex_minorant_is_convex_below_and_meets_both_ends(rises):
    values = np.cumsum(rises)
    below = convex_minorant(values)
    assert (below <= values + 1e-9).all()
    assert (np.diff(below, n=2) >= -1e-9).all()
    assert below[0] == values[0] and below[-1] == pytest.approx(values[-1])


@properties
@given(st.integers(1, 5), st.floats(0.1, 0.95), st.floats(0.0, 0.95), st.floats(0, 20), st.integers(0, GAMMA))
def test_what_is_chosen_promises_at_least_what_plain_decoding_does(requests, expected, lookup, block, limits):
    costs = Costs(block=block)
    here = batch(expected, lookup, requests, limits)
    plan = make_policy("adaptive:stale+lookup", GAMMA, costs).plan(here)
    survival = np.where(plan.drafter[:, None], here.expected, np.where(plan.lookup[:, None], here.lookup, 0.0))
    most = np.where(plan.drafter | plan.lookup, here.limits, 0).astype(np.int32)
    chosen = plan.rule.lengths(survival, most)
    tokens = requests + sum(row[:n].sum() for row, n in zip(survival, chosen, strict=True))
    seconds = costs.target_seconds(requests, np.array([requests + chosen.sum()]), 0.0)[0]
    seconds += costs.drafter_seconds(0) if plan.drafter.any() else 0.0
    plain = requests / costs.target_seconds(requests, np.array([requests]), 0.0)[0]
    assert tokens / seconds >= plain * (1 - 1e-9)
