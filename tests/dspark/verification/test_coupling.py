"""Choices by shared noise: their law, their independence, and how often two distributions choose alike."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.orchestrator.randomness import RequestRandomness
from dspark.verification import SamplingSettings, Verdict, coupled_choice, target_distribution, verify_block_coupled
from dspark.verification.coupling import noise_hashes
from dspark.verification.distribution import Distribution
from scipy.stats import chi2_contingency, chisquare

LEVEL = 1e-3                         # a right generator fails a case once in a thousand choices of keys; ours are fixed
ANCHOR = np.array([0], np.int32)
LAWS = {
    "two": [0.7, 0.3],
    "uneven": [0.5, 0.25, 0.15, 0.05, 0.03, 0.02],
    "flat": [1 / 40] * 40,
    "long tail": [0.6, *[0.4 / 999] * 999],
}


def distribution(probs, first_id=0, step=1):
    weights = np.array(probs, np.float64)
    return Distribution(first_id + step * np.arange(weights.size), weights, float(weights.sum()))


def keys(count, seed=0):
    return np.random.default_rng(seed).integers(-(2**31), 2**31, count).tolist()


def counts_of(choices, law):
    """Counts of the law's tokens and what is expected of them, those expected fewer than five times taken together."""
    expected = len(choices) * law.probs
    observed = np.array([np.sum(choices == token) for token in law.ids])
    assert observed.sum() == len(choices)
    rare = expected < 5
    if rare.any():
        observed, expected = (np.append(a[~rare], a[rare].sum()) for a in (observed, expected))
    return observed, expected


def test_the_hash_is_the_published_one_over_key_and_token():
    """Against plain integers, written from the constants of triple32."""
    def triple32(x):
        for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
            x = (x ^ (x >> shift)) * factor % 2**32
        return x ^ (x >> 14)

    tokens = np.array([0, 1, 2, 49_151, 262_143])
    for key in [0, -1, 2**31 - 1, -(2**31), *keys(5)]:
        expected = [triple32(key % 2**32 ^ (token * 0x9E3779B9) % 2**32) for token in tokens.tolist()]
        assert noise_hashes(key, tokens).tolist() == expected


@pytest.mark.parametrize("first_id, step", [(0, 1), (40_000, 1), (3, 64)])
@pytest.mark.parametrize("name", LAWS)
def test_over_keys_the_choice_has_the_distributions_law(name, first_id, step):
    law = distribution(LAWS[name], first_id, step)
    choices = np.array([coupled_choice(law, key) for key in keys(20_000)])
    assert chisquare(*counts_of(choices, law)).pvalue > LEVEL


def test_consecutive_keys_are_as_good_as_random_ones():
    law = distribution(LAWS["uneven"])
    choices = np.array([coupled_choice(law, key) for key in range(20_000)])
    assert chisquare(*counts_of(choices, law)).pvalue > LEVEL


def test_the_choice_is_the_first_arrival_of_all():
    """The bound that spares most logarithms changes nothing."""
    random = np.random.default_rng(1)
    for key in keys(400):
        law = distribution(random.dirichlet(np.full(300, 0.05)) + 1e-12)
        times = -np.log1p(-(noise_hashes(key, law.ids) + 0.5) * 2.0**-32) / law.weights
        assert coupled_choice(law, key) == law.ids[times.argmin()]


def test_a_token_of_probability_zero_is_never_chosen():
    law = distribution([0.0, 0.2, 0.0, 1e-6, 0.3, 0.0])
    assert {coupled_choice(law, key) for key in keys(200)} == {1, 4}


def test_a_certain_token_is_chosen_by_any_noise():
    assert {coupled_choice(distribution([1.0], 7), key) for key in keys(20)} == {7}


def test_choices_of_neighbouring_positions_are_independent():
    law, table = distribution(LAWS["uneven"][:4]), np.zeros((4, 4))
    for seed in range(8000):
        first, second = RequestRandomness(seed).noise_keys(17, 2)
        table[coupled_choice(law, int(first)), coupled_choice(law, int(second))] += 1
    assert chi2_contingency(table).pvalue > LEVEL
    for axis in (0, 1):
        assert chisquare(table.sum(axis=axis), 8000 * law.probs).pvalue > LEVEL


def test_choices_of_neighbouring_seeds_are_independent():
    law, table = distribution(LAWS["uneven"][:4]), np.zeros((4, 4))
    chosen = [coupled_choice(law, int(RequestRandomness(seed).noise_keys(5, 1)[0])) for seed in range(8000)]
    for first, second in zip(chosen[::2], chosen[1::2], strict=True):
        table[first, second] += 1
    assert chi2_contingency(table).pvalue > LEVEL


def test_a_positions_key_does_not_depend_on_who_asks_for_it():
    randomness = RequestRandomness(2**63 + 5)
    all_keys = randomness.noise_keys(0, 300)
    assert np.unique(all_keys).size == 300 and all_keys.dtype == np.int32
    for start, count in ((0, 1), (1, 8), (250, 50), (8, 1)):
        assert randomness.noise_keys(start, count).tolist() == all_keys[start : start + count].tolist()
    assert not np.intersect1d(all_keys, RequestRandomness(1).noise_keys(0, 300)).size


def chance_of_the_same_choice(p, q):
    """Exactly: Σ_v 1 / Σ_u max(p_u / p_v, q_u / q_v), over v that both can choose."""
    return sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(len(p)) if p[v] > 0 and q[v] > 0)


@pytest.mark.parametrize("seed", range(3))
def test_two_distributions_choose_alike_as_often_as_theory_says(seed):
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.ones(6), 2)
    same = sum(coupled_choice(distribution(p), key) == coupled_choice(distribution(q), key) for key in keys(10_000))
    chance = chance_of_the_same_choice(p, q)
    assert chisquare([same, 10_000 - same], [10_000 * chance, 10_000 * (1 - chance)]).pvalue > LEVEL
    distance = 0.5 * np.abs(p - q).sum()
    assert (1 - distance) / (1 + distance) <= chance <= 1 - distance


def verify(logits, drafts, noise, sampling=None, history=ANCHOR):
    return verify_block_coupled(
        logits, np.array(drafts, np.int32), sampling or SamplingSettings(), history, np.array(noise, np.int32)
    )


@pytest.mark.parametrize("sampling", [
    SamplingSettings(), SamplingSettings(0.6, top_k=5), SamplingSettings(top_p=0.8, repetition_penalty=1.3),
    SamplingSettings(temperature=0.0, repetition_penalty=1.3),
])
def test_the_output_does_not_depend_on_what_was_drafted_nor_on_how_far_it_was_verified(sampling):
    vocabulary, length = 12, 30
    for seed in range(6):
        random = np.random.default_rng(seed)
        table = 2 * random.standard_normal((vocabulary, vocabulary)).astype(np.float32)
        noise = RequestRandomness(seed).noise_keys(0, 2 * length)
        outputs = set()
        for gamma, skill in ((0, 0.0), (1, 0.5), (4, 0.0), (4, 0.8), (7, 0.8)):
            tokens = [3]
            while len(tokens) <= length:
                drafts = []
                for _ in range(gamma):
                    before = np.array([*tokens, *drafts], np.int32)
                    p_target = target_distribution(table[before[-1]], sampling, before)
                    guess = coupled_choice(p_target, int(noise[len(before)]))
                    drafts.append(guess if random.random() < skill else int(random.integers(vocabulary)))
                logits = table[[tokens[-1], *drafts]]
                verdict = verify(logits, drafts, noise[len(tokens) :], sampling, np.array(tokens, np.int32))
                tokens += [*drafts[: verdict.accepted], verdict.next_token]
            outputs.add(tuple(tokens[:length]))
        assert len(outputs) == 1


def test_drafts_of_the_targets_own_distribution_are_all_accepted():
    random = np.random.default_rng(0)
    for seed in range(200):
        logits = random.standard_normal((5, 50)).astype(np.float32)
        noise = keys(5, seed)
        laws = [target_distribution(row, SamplingSettings(), ANCHOR) for row in logits[:4]]
        drafts = [coupled_choice(law, key) for law, key in zip(laws, noise, strict=False)]
        assert verify(logits, drafts, noise).accepted == 4


def test_rows_behind_a_refused_draft_are_not_looked_at():
    logits = np.array([[0, 90], [np.nan, np.nan]], np.float32)
    assert verify(logits, [0], [1, 2]) == Verdict(0, 1)
