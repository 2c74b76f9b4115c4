"""Which length rules keep speculative sampling lossless: exact laws of whole rounds (dspark-spec, sections 5 and 8).

A rule takes survival [R, gamma], limits [R] and a curve to lengths [R]. The second confidence of a request depends on
its drafted x_1. Acceptance probabilities and residuals are the product's own.
"""

import itertools

import numpy as np
import pytest
from dspark.scheduling import allocate, causal_greedy, make_policy, marginal_gain, stale_budget
from dspark.verification import (
    SamplingSettings,
    acceptance_probability,
    draft_distribution,
    residual,
    target_distribution,
)

TOKENS = (0, 1)
IDS = np.array(TOKENS, np.int32)


def p_target_of(probs):
    return target_distribution(np.log(np.asarray(probs)).astype(np.float32), SamplingSettings(), IDS[:0])


def p_draft_of(probs):
    return draft_distribution(IDS, np.asarray(probs, np.float32))


def plain_law(target):
    """Law [x1, x2] of the target's next two tokens."""
    return target[0].probs[:, None] * np.stack([row.probs for row in target[1]])


def two_tokens_law(target, draft, x1, length):
    """Law [x1, x2] of the next two tokens of a request that drafted x1 (and x2 ~ p^d) and had `length` drafts verified.

    target and draft are (distribution of the first token, [distributions of the second, given the first]).
    """
    (target1, target2), (draft1, draft2) = target, draft
    if length == 0:
        return plain_law(target)
    after = np.stack([row.probs for row in target2])
    accept = acceptance_probability(target1, draft1, x1)
    law = (1 - accept) * residual(target1, draft1).probs[:, None] * after
    if length == 1:
        law[x1] += accept * after[x1]
        return law
    for x2, drawn in zip(TOKENS, draft2[x1].probs, strict=True):
        accept2 = acceptance_probability(target2[x1], draft2[x1], x2)
        law[x1, x2] += accept * drawn * accept2
        law[x1] += accept * drawn * (1 - accept2) * residual(target2[x1], draft2[x1]).probs
    return law


def retrospective(survival, limits, curve):
    """Not lossless: the global argmax of Theta over the very confidences that the drafts of this round produced."""
    budgets = range(int(limits.sum()) + 1)
    lengths = [allocate(survival, limits, n) for n in budgets]
    expected = [len(limits) + sum(row[:n].sum() for row, n in zip(survival, chosen, strict=True)) for chosen in lengths]
    return lengths[int(np.argmax(np.array(expected) * curve[: len(expected)]))]


class Batch:
    """Two requests, gamma = 2, |V| = 2: random distributions, confidences c_1 and c_2(x_1), and a falling curve."""

    limits = np.array([2, 2], np.int32)

    def __init__(self, rng):
        def pair(record):
            return [(record(rng.dirichlet([1, 1])), [record(rng.dirichlet([1, 1])) for _ in TOKENS]) for _ in range(2)]

        self.targets, self.drafts = pair(p_target_of), pair(p_draft_of)
        self.c1, self.c2 = rng.uniform(size=2), rng.uniform(size=(2, 2))
        self.curve = np.sort(rng.uniform(0.3, 1, 5))[::-1]
        self.stale = np.cumprod(rng.uniform(size=(2, 2)), axis=1)

    def survival(self, first):
        return np.stack([self.c1, self.c1 * self.c2[[0, 1], first]], axis=1)

    def error(self, rule):
        """Total variation between the law of both requests' next two tokens and the target's."""
        law = np.zeros((2,) * 4)
        for first in itertools.product(TOKENS, repeat=2):
            lengths = rule(self.survival(first), self.limits, self.curve)
            rows = [
                self.drafts[r][0].probability(first[r])
                * two_tokens_law(self.targets[r], self.drafts[r], first[r], int(lengths[r]))
                for r in range(2)
            ]
            law += np.multiply.outer(*rows)
        return 0.5 * np.abs(law - np.multiply.outer(*map(plain_law, self.targets))).sum()


def worst_error(rule_of, instances=150):
    rng = np.random.default_rng(0)
    batches = [Batch(rng) for _ in range(instances)]
    return max(batch.error(rule_of(batch)) for batch in batches)


LOSSLESS = {
    "causal_greedy": lambda batch: causal_greedy,
    "stale_budget": lambda batch: lambda survival, limits, curve: stale_budget(batch.stale, survival, limits, curve),
    "budget_2": lambda batch: lambda survival, limits, curve: allocate(survival, limits, 2),
    "budget_3": lambda batch: lambda survival, limits, curve: allocate(survival, limits, 3),
    "marginal_gain": lambda batch: lambda survival, limits, curve: marginal_gain(
        survival, limits, np.diff(0.4 / batch.curve)
    ),
    **{
        policy: lambda batch, policy=policy: lambda survival, limits, curve: make_policy(policy, 2).rule.lengths(
            survival, limits
        )
        for policy in ("full", "fixed:0", "fixed:1", "threshold:0.5")
    },
}


@pytest.mark.parametrize("rule_of", LOSSLESS.values(), ids=LOSSLESS.keys())
def test_the_output_of_two_requests_has_exactly_the_targets_law(rule_of):
    assert worst_error(rule_of) < 1e-12


def test_the_retrospective_scheduler_biases_the_output_of_two_requests():
    assert worst_error(lambda batch: retrospective) > 0.1


def first_token_is_a(rule):
    """Appendix A: the probability that the first output token is A (id 0), 0.7 under the target."""
    target = p_target_of([0.7, 0.3]), [p_target_of([0.5, 0.5])] * 2
    draft = p_draft_of([0.5, 0.5]), [p_draft_of([0.5, 0.5])] * 2
    limits, curve = np.array([2], np.int32), np.array([1.0, 0.5, 0.45])
    law = np.zeros((2, 2))
    for x1, c2 in zip(TOKENS, (0.9, 0.0), strict=True):
        lengths = rule(np.array([[0.8, 0.8 * c2]]), limits, curve)
        law += draft[0].probability(x1) * two_tokens_law(target, draft, x1, int(lengths[0]))
    return law[0].sum()


def test_the_retrospective_scheduler_biases_the_first_token():
    assert first_token_is_a(retrospective) == pytest.approx(0.85, abs=1e-7)


def test_algorithm_1_keeps_the_first_token_unbiased():
    assert first_token_is_a(causal_greedy) == pytest.approx(0.70, abs=1e-7)


@pytest.mark.parametrize("stale_c2", [0.9, 0.0])
def test_the_stale_budget_keeps_the_first_token_unbiased_whatever_the_earlier_round_was(stale_c2):
    stale = np.array([[0.8, 0.8 * stale_c2]])

    def rule(survival, limits, curve):
        return stale_budget(stale, survival, limits, curve)

    assert first_token_is_a(rule) == pytest.approx(0.70, abs=1e-7)
