"""The acceptance rule at its edges; its law is tested in the whole-round tests."""

import numpy as np
import pytest
from dspark.errors import EngineError
from dspark.verification import SamplingSettings, Verdict, log_probs_of, target_distribution, verify_block
from hypothesis import given, settings
from hypothesis import strategies as st

GREEDY = SamplingSettings(temperature=0.0)
LARGEST = np.float32(1 - 2**-24)  # the largest uniform
ANCHOR = np.array([0], np.int32)


def one_hot(tokens):
    """p^d of drafts that were certain."""
    return np.array(tokens, np.int32).reshape(-1, 1), np.ones((len(tokens), 1), np.float32)


def verify(logits, drafts, p_draft=None, sampling=GREEDY, history=ANCHOR, uniforms=None):
    uniforms = np.full(len(drafts) + 1, 0.5, np.float32) if uniforms is None else np.array(uniforms, np.float32)
    ids, probs = p_draft or one_hot(drafts)
    return verify_block(logits, np.array(drafts, np.int32), ids, probs, sampling, history, uniforms)


@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("drafter", ["perfect", "random", "half"])
def test_greedy_verification_equals_token_by_token_argmax_decoding(penalty, drafter):
    vocabulary, prompt, count, gamma = 12, [3, 1, 4], 60, 4
    sampling = SamplingSettings(temperature=0.0, repetition_penalty=penalty)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        table = rng.integers(-8, 9, (vocabulary, vocabulary, vocabulary)).astype(np.float32)  # with many ties

        def logits_after(tokens, table=table):
            return table[tokens[-2], tokens[-1]]

        def penalised_argmax(tokens):
            row = [float(x) for x in logits_after(tokens)]
            for token in set(tokens):
                row[token] = np.float32(row[token]) * np.float32(penalty if row[token] < 0 else 1 / penalty)
            return row.index(max(row))

        plain = list(prompt)
        while len(plain) < len(prompt) + count:
            plain.append(penalised_argmax(plain))

        tokens, rounds = list(prompt), 0
        while len(tokens) < len(plain):
            drafts = []
            for _ in range(gamma):
                guess = penalised_argmax([*tokens, *drafts])
                if drafter == "random" or (drafter == "half" and rng.random() < 0.5):
                    guess = int(rng.integers(vocabulary))
                drafts.append(guess)
            logits = np.stack([logits_after([*tokens, *drafts[:k]]) for k in range(gamma + 1)])
            verdict = verify(logits, drafts, sampling=sampling, history=np.array(tokens, np.int32))
            tokens += [*drafts[: verdict.accepted], verdict.next_token]
            rounds += 1
        assert tokens[: len(plain)] == plain
        if drafter == "perfect":
            assert rounds == count // (gamma + 1)


def test_a_greedy_draft_that_ties_with_the_argmax_but_has_the_higher_id_is_rejected():
    logits = np.array([[0, 5, 5, 0], [9, 0, 0, 0]], np.float32)
    assert verify(logits, [1]) == Verdict(1, 0)
    assert verify(logits, [2]) == Verdict(0, 1)


def test_greedy_needs_no_draft_distribution():
    logits = np.array([[0, 5, 1], [0, 1, 5]], np.float32)
    padding = np.full((1, 4), -1, np.int32), np.zeros((1, 4), np.float32)
    assert verify(logits, [1], padding) == Verdict(1, 2)


def test_without_drafts_the_token_is_drawn_from_the_target():
    logits = np.log(np.array([[0.25, 0.5, 0.25]], np.float32))
    nothing = np.empty((0, 4), np.int32), np.empty((0, 4), np.float32)
    for uniform, token in ((0.0, 0), (0.24, 0), (0.26, 1), (0.74, 1), (0.76, 2)):
        assert verify(logits, [], nothing, SamplingSettings(), uniforms=[uniform]) == Verdict(0, token)


def test_the_last_uniform_draws_the_final_token_even_when_few_drafts_were_verified():
    logits = np.log(np.array([[0.5, 0.5], [0.5, 0.5]], np.float32))
    for final, token in ((0.1, 0), (0.9, 1)):
        assert verify(logits, [1], sampling=SamplingSettings(), uniforms=[0.0, 0.99, 0.99, final]) == Verdict(1, token)


def test_rows_behind_a_rejection_are_not_looked_at():
    logits = np.array([[0, 9], [np.nan, np.nan], [np.nan, np.nan]], np.float32)
    assert verify(logits, [0, 0]) == Verdict(0, 1)
    assert verify(logits, [0, 0], sampling=SamplingSettings(top_k=1)) == Verdict(0, 1)


def test_padded_candidates_are_no_candidates():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [1, 1e-9, 1e-9]], np.float32))
    ids, probs = np.array([[2, -1, 0, -1]], np.int32), np.array([[0.5, 0, 0.5, 0]], np.float32)
    sampling = SamplingSettings()
    assert verify(logits, [2], (ids, probs), sampling, uniforms=[0.49, 0.0]) == Verdict(1, 0)
    assert verify(logits, [2], (ids, probs), sampling, uniforms=[0.51, 0.0]) == Verdict(0, 1)


def test_the_penalty_of_a_later_position_counts_the_drafts_before_it():
    logits = np.array([[4, 0, 0], [4, 3, 0]], np.float32)
    sampling = SamplingSettings(temperature=0.0, repetition_penalty=2.0)
    assert verify(logits, [0], sampling=sampling, history=np.array([2], np.int32)) == Verdict(1, 1)


def test_a_draft_outside_its_own_distribution_is_an_engine_error():
    nothing_drawn = np.array([[1, -1]], np.int32), np.zeros((1, 2), np.float32)
    for p_draft in (one_hot([2]), nothing_drawn):
        with pytest.raises(EngineError, match="draft token 1 has probability 0"):
            verify(np.zeros((2, 3), np.float32), [1], p_draft, SamplingSettings())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.sampled_from([2, 6, 700]),
    sampling=st.sampled_from(
        [SamplingSettings(), SamplingSettings(0.3, top_p=0.7), SamplingSettings(top_k=2), SamplingSettings(min_p=0.5)]
    ),
    extremes=st.lists(st.sampled_from([np.float32(0), np.float32(2**-24), LARGEST]), min_size=4, max_size=4),
    equal=st.booleans(),
)
def test_no_token_of_probability_zero_is_accepted_or_drawn_whatever_the_uniforms(
    seed, vocabulary, sampling, extremes, equal
):
    """Also where p^d is p^t but for its rounding to fp32, so that the residual is empty or dust."""
    rng = np.random.default_rng(seed)
    logits = (6 * rng.standard_normal((4, vocabulary))).astype(np.float32)
    p_target = [target_distribution(row, sampling, ANCHOR) for row in logits]
    ids = np.full((3, vocabulary), -1, np.int32)
    probs = np.zeros((3, vocabulary), np.float32)
    for k in range(3):
        p_draft = p_target[k] if equal else target_distribution(logits[k] + rng.random(vocabulary), sampling, ANCHOR)
        ids[k, : p_draft.ids.size], probs[k, : p_draft.ids.size] = p_draft.ids, p_draft.probs
    drafts = [int(rng.choice(row[p > 0])) for row, p in zip(ids, probs, strict=True)]
    verdict = verify(logits, drafts, (ids, probs), sampling, uniforms=extremes)
    emitted = [*drafts[: verdict.accepted], verdict.next_token]
    assert all(p_target[k].probability(token) > 0 for k, token in enumerate(emitted))


def test_log_probs_are_the_models_own_log_softmax():
    rng = np.random.default_rng(0)
    logits = np.concatenate([rng.standard_normal((3, 900)), 1e4 * rng.standard_normal((1, 900))]).astype(np.float32)
    tokens = np.array([0, 5, 899, logits[3].argmax()], np.int32)
    wide = logits.astype(np.float64)
    peaks = wide.max(axis=1)
    expected = wide[range(4), tokens] - peaks - np.log(np.exp(wide - peaks[:, None]).sum(axis=1))
    result = log_probs_of(logits, tokens)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    assert log_probs_of(logits[:0], tokens[:0]).shape == (0,)
