"""Whole rounds, drafted, cut, verified and drawn at random, follow the target's own law.

Each case draws rounds with a fixed seed, completes every round's output to gamma + 1 tokens by plain sampling, and
compares the counts of the token sequences with their exact probabilities by a chi-square test at level LEVEL. The exact
law comes from a target distribution written independently of the product.
"""

import numpy as np
import pytest
from scipy.stats import chisquare
from toy_rounds import CASES, GAMMA, PROMPT, V, reference_probabilities, sequence_law

LEVEL = 1e-3
ROUNDS = 2000


def draw(rng, ids, probs):
    return int(ids[min(np.searchsorted(np.cumsum(probs), rng.random(), side="right"), len(ids) - 1)])


def sampled_counts(setup, p_target, verify, seed):
    """Counts [V, V, ..] of the gamma + 1 tokens after the prompt over ROUNDS rounds."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((V,) * (GAMMA + 1))
    for _ in range(ROUNDS):
        drafts = ()
        for _ in range(GAMMA):
            drafts = (*drafts, draw(rng, *setup.drafter.position((PROMPT[-1], *drafts))[:2]))
        accepted, token = verify(drafts, rng.random(GAMMA + 1, dtype=np.float32))
        sequence = (*drafts[:accepted], token)
        while len(sequence) <= GAMMA:
            sequence = (*sequence, draw(rng, np.arange(V), p_target[sequence]))
        counts[sequence] += 1
    return counts


def p_value(setup, verify, seed=0):
    p_target = {}

    def next_probabilities(prefix):
        probs = reference_probabilities(setup.target.logits(prefix), setup.settings, prefix)
        return p_target.setdefault(prefix[len(PROMPT) :], probs)

    expected = ROUNDS * sequence_law(next_probabilities).ravel()
    counts = sampled_counts(setup, p_target, verify, seed).ravel()
    assert counts[expected == 0].sum() == 0, "a sequence that the target cannot produce"
    order = expected.argsort()
    counts, expected = counts[order], expected[order]
    rare = max((expected < 5).sum(), expected.cumsum().searchsorted(5) + 1)  # pooled, so that every cell expects 5
    return chisquare(*([array[:rare].sum(), *array[rare:]] for array in (counts, expected))).pvalue


@pytest.mark.parametrize("setup", CASES.values(), ids=CASES.keys())
def test_sampled_rounds_follow_the_targets_law(setup):
    assert p_value(setup, setup.verify) > LEVEL


def test_the_comparison_sees_a_rejection_that_is_drawn_from_the_target_instead_of_the_residual():
    setup = CASES["plain"]
    rng = np.random.default_rng(1)

    def wrong(drafts, uniforms):
        accepted, token = setup.verify(drafts, uniforms)
        if accepted < GAMMA:
            p_target = setup.p_target((*PROMPT, *drafts[:accepted]))
            token = draw(rng, p_target.ids, p_target.probs)
        return accepted, token

    assert p_value(setup, wrong) < 1e-6


def test_the_cases_do_cut_accept_and_reject():
    lengths = {setup.block(x)[2] for setup in CASES.values() for x in setup.possible_drafts()}
    assert lengths == {0, 1, 2}
    for head in ("vanilla", "gated", "rnn"):
        cut = CASES[f"{head}_head_cut_by_confidence"]
        assert len({cut.block(x)[2] for x in cut.possible_drafts()}) > 1, f"{head}: the cut never depends on the draft"
