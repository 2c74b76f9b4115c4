"""A probability distribution over the vocabulary that stores its support only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_BLOCK = 256  # entries summed as one when a long distribution is drawn from: a cumulative sum over all V costs 200 us


@dataclass(frozen=True)
class Distribution:
    """Token `ids[i]` has probability `weights[i] / total`, every other token 0; N ids, strictly ascending."""

    ids: Int64                       # [N]
    weights: Float64                 # [N] >= 0
    total: float                     # sum of weights, > 0

    @property
    def probs(self) -> Float64:
        """Probabilities [N] of `ids`."""
        return self.weights / self.total

    def probability(self, token: int) -> float:
        """Probability of one token."""
        i = int(self.ids.searchsorted(token))
        return float(self.weights[i]) / self.total if i < self.ids.size and self.ids[i] == token else 0.0

    def draw(self, uniform: float) -> int:
        """The token at `uniform` in [0, 1) of the cumulative distribution, ids ascending; never one of weight 0."""
        weights, start, point = self.weights, 0, uniform * self.total
        if weights.size > _BLOCK:
            cumulative = np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK)).cumsum()
            block = _first_above(cumulative, point)
            start = block * _BLOCK
            weights = weights[start : start + _BLOCK]
            point -= float(cumulative[block - 1]) if block else 0.0
        return int(self.ids[start + _first_above(weights.cumsum(), point)])


def _first_above(cumulative: Float64, point: float) -> int:
    """First index whose cumulative weight exceeds `point`; where rounding leaves none, the last of positive weight."""
    i = int(cumulative.searchsorted(point, side="right"))
    return i if i < cumulative.size else int(cumulative.searchsorted(cumulative[-1], side="left"))
