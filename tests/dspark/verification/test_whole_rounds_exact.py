"""Whole rounds by exact enumeration: every draft, acceptance and final token, with the product's own numbers."""

import itertools

import numpy as np
import pytest
from toy_rounds import CASES, GAMMA, V, dense, sequence_law

MARGIN = 1e-9  # how close to the end of an interval a uniform is tried


@pytest.mark.parametrize("setup", CASES.values(), ids=CASES.keys())
def test_the_exact_law_of_a_round_is_the_targets(setup):
    law = np.zeros((V,) * (GAMMA + 1))
    expected = sequence_law(lambda prefix: dense(setup.p_target(prefix)))
    for drafts in setup.possible_drafts():
        reached = setup.draft_probability(drafts)
        for accepted, accept in enumerate([*setup.acceptances(drafts), 0.0]):
            after = expected[drafts[:accepted]]  # the law of what follows, but for the token drawn here
            plain = after.sum(axis=tuple(range(1, after.ndim)), keepdims=True)
            rest = np.divide(after, plain, out=np.zeros_like(after), where=plain > 0)
            drawn = dense(setup.next_token(drafts, accepted)).reshape(plain.shape)
            law[drafts[:accepted]] += reached * (1 - accept) * drawn * rest
            reached *= accept
    np.testing.assert_allclose(law, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("setup", CASES.values(), ids=CASES.keys())
def test_verify_block_turns_uniforms_into_exactly_these_outcomes(setup):
    """Every outcome owns an interval of each uniform, and verify_block returns it at both ends of the interval."""
    for drafts in setup.possible_drafts():
        leading_on = []
        for accepted, accept in enumerate([*setup.acceptances(drafts), 0.0]):
            next_token = setup.next_token(drafts, accepted)
            upper = next_token.probs.cumsum()
            for token, low, high in zip(next_token.ids, [0.0, *upper[:-1]], upper, strict=True):
                intervals = [*leading_on, (accept, 1.0)] + [(0.0, 1.0)] * (GAMMA - accepted - 1)
                intervals = [*intervals[:GAMMA], (low, high)]
                if all(b - a > 3 * MARGIN for a, b in intervals):
                    for uniforms in itertools.product(*((a + MARGIN, b - MARGIN) for a, b in intervals)):
                        assert setup.verify(drafts, np.array(uniforms)) == (accepted, token)
            leading_on.append((0.0, accept))
