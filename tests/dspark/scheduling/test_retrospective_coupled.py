"""The global optimum over the drafts of this very round: biased under the standard rule, not under coupling."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.orchestrator.randomness import Purpose, RequestRandomness
from dspark.scheduling.length_rules import Budget, GlobalOptimum
from dspark.verification import (
    SamplingSettings,
    coupled_choice,
    draft_distribution,
    target_distribution,
    verify_block,
    verify_block_coupled,
)
from scipy.stats import chisquare

A, B = 0, 1
IDS = np.array([A, B], np.int32)
CURVE = np.array([1.0, 0.5, 0.45])   # of dspark-spec, section 5: SPS with 0, 1 and 2 drafts verified
RULE = GlobalOptimum(1.0 / CURVE, extra_tokens=0)
P_TARGET = np.log(np.array([[0.7, 0.3], [0.5, 0.5], [0.5, 0.5]], np.float32))
P_DRAFT = np.full((2, 2), 0.5, np.float32)
SECOND_CONFIDENCE = {A: 0.9, B: 0.0}
ROUNDS, LEVEL = 6000, 1e-3
ANCHOR = np.array([B], np.int32)


def first_token_is_a(coupled):
    """In how many of ROUNDS rounds, each with a seed of its own, the first output token is A."""
    draft, found = draft_distribution(IDS, P_DRAFT[0]), 0
    for seed in range(ROUNDS):
        randomness = RequestRandomness(seed)
        noise = randomness.noise_keys(1, 3)
        draws = randomness.uniforms(0, Purpose.DRAFT, 2)
        drafts = [coupled_choice(draft, int(noise[k])) if coupled else draft.draw(float(draws[k])) for k in range(2)]
        survival = np.array([[0.8, 0.8 * SECOND_CONFIDENCE[drafts[0]]]])
        length = int(RULE.lengths(survival, np.array([2], np.int32))[0])
        verified, logits = np.array(drafts[:length], np.int32), P_TARGET[: length + 1]
        if coupled:
            verdict = verify_block_coupled(logits, verified, SamplingSettings(), ANCHOR, noise)
        else:
            ids = np.tile(IDS, (length, 1))
            uniforms = randomness.uniforms(0, Purpose.VERIFY, 3)
            verdict = verify_block(logits, verified, ids, P_DRAFT[:length], SamplingSettings(), ANCHOR, uniforms)
        found += (drafts[0] if verdict.accepted else verdict.next_token) == A
    return found


def is_plausible(found, probability):
    return chisquare([found, ROUNDS - found], [ROUNDS * probability, ROUNDS * (1 - probability)]).pvalue > LEVEL


def test_under_coupling_the_retrospective_scheduler_leaves_the_first_token_unbiased():
    found = first_token_is_a(coupled=True)
    assert is_plausible(found, 0.70) and not is_plausible(found, 0.85)


def test_under_the_standard_rule_it_biases_the_first_token():
    found = first_token_is_a(coupled=False)
    assert is_plausible(found, 0.85) and not is_plausible(found, 0.70)


def test_the_choice_itself_has_the_targets_law():
    """The exact statement behind it: what is put out at a position is a function of p^t and the noise alone."""
    law = target_distribution(P_TARGET[0], SamplingSettings(), ANCHOR)
    found = sum(coupled_choice(law, int(RequestRandomness(seed).noise_keys(1, 1)[0])) == A for seed in range(ROUNDS))
    assert found == first_token_is_a(coupled=True)


@pytest.mark.parametrize("extra", [0, 3])
def test_it_admits_what_the_largest_throughput_of_this_rounds_survivals_has(extra):
    random = np.random.default_rng(extra)
    limits = np.array([3, 2, 3], np.int32)
    for _ in range(50):
        survival = np.cumprod(random.random((3, 3)), axis=1)
        seconds = 1.0 + np.sort(random.random(9) * 2)
        throughput = []
        for budget in range(9):
            lengths = Budget(budget).lengths(survival, limits)
            tokens = 3 + extra + sum(row[:n].sum() for row, n in zip(survival, lengths, strict=True))
            throughput.append(tokens / seconds[budget])
        chosen = GlobalOptimum(seconds, extra).lengths(survival, limits)
        assert chosen.sum() == int(np.argmax(throughput))
