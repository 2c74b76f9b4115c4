"""At temperature 1 the server's tokens have the same frequencies with and without speculation, over many seeds."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dspark_client.transport import Connection, Generation
from scipy.stats import chi2_contingency

pytestmark = pytest.mark.serving

SEEDS = 600
POSITION = 2                         # of the compared token: two may have been drafted before it
LEVEL = 1e-3                         # of the test; the seeds are fixed
RARE = 10                            # tokens seen less often in both samples together are taken as one


def tokens_at(connection: Connection, seeds: range, temperature: float, max_draft_tokens: int | None) -> Counter[int]:
    """How often each token came at POSITION, one stream a seed."""

    def run(seed: int) -> int:
        generation = Generation(
            text_input="ab", max_tokens=POSITION + 2, temperature=temperature, top_k=20, seed=seed, ignore_eos=True,
            max_draft_tokens=max_draft_tokens,
        )
        chunks = connection.generate(generation, timeout_s=120)
        return [token for chunk in chunks for token in chunk.token_ids][POSITION]

    with ThreadPoolExecutor(16) as pool:
        return Counter(pool.map(run, seeds))


def p_value(one: Counter[int], other: Counter[int]) -> float:
    """Of the hypothesis that both samples come from one distribution (chi-square of the contingency table)."""
    common = [token for token in one | other if one[token] + other[token] >= RARE]
    table = np.array([[sample[token] for token in common] for sample in (one, other)])
    rest = np.array([[sample.total()] for sample in (one, other)]) - table.sum(1, keepdims=True)
    table = np.hstack([table, rest]) if rest.any() else table
    return float(chi2_contingency(table).pvalue)


def test_speculation_does_not_change_the_frequencies_of_sampled_tokens(connection: Connection) -> None:
    speculative = tokens_at(connection, range(SEEDS), 1.0, None)
    plain = tokens_at(connection, range(SEEDS, 2 * SEEDS), 1.0, 0)
    assert len(plain) > 20
    assert p_value(speculative, plain) > LEVEL


def test_the_comparison_notices_another_temperature(connection: Connection) -> None:
    plain = tokens_at(connection, range(SEEDS), 1.0, 0)
    colder = tokens_at(connection, range(SEEDS, 2 * SEEDS), 0.6, 0)
    assert p_value(plain, colder) < LEVEL
