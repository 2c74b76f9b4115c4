"""95% intervals by bootstrap over prompts: the same resampled prompts for every drafter, so that ratios are paired."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark_build.evaluation.rounds import Int64

Float64 = npt.NDArray[np.float64]
RESAMPLES = 1000
LEVELS = (2.5, 97.5)


@dataclass(frozen=True)
class Estimate:
    """A figure and its values over the resamples."""

    value: float
    resampled: Float64               # [B]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval."""
        low, high = np.percentile(self.resampled, LEVELS)
        return float(low), float(high)

    def over(self, other: Estimate) -> Estimate:
        """The ratio of two estimates on the same resamples."""
        return Estimate(self.value / other.value, self.resampled / other.resampled)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of estimates from independent groups: the macro τ of data sets."""
    return Estimate(
        float(np.mean([each.value for each in estimates])), np.mean([each.resampled for each in estimates], axis=0)
    )


class Prompts:
    """The prompts of one group of S responses, and B resamples of them, which follow from the seed and the prompts."""

    def __init__(self, ids: Sequence[str], seed: int, resamples: int = RESAMPLES) -> None:
        self.distinct, self._prompt_of = np.unique(np.array(ids), return_inverse=True)
        count = len(self.distinct)
        random = np.random.default_rng((seed, zlib.crc32("\n".join(self.distinct).encode())))
        self._weights = random.multinomial(count, np.full(count, 1 / count), size=resamples)

    def tau(self, tokens: Int64, rounds: Int64) -> Estimate:
        """Tokens a round, all responses [S] together."""
        tokens_of_prompt, rounds_of_prompt = (np.bincount(self._prompt_of, each) for each in (tokens, rounds))
        resampled = (self._weights @ tokens_of_prompt) / (self._weights @ rounds_of_prompt)
        return Estimate(float(tokens.sum() / rounds.sum()), resampled)
