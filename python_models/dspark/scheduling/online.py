"""Costs corrected by what served steps take: other work on the machine, and what a profile did not see."""

from __future__ import annotations

import math

import numpy as np

from dspark.scheduling.confidence import Float64, Int64
from dspark.scheduling.costs import StepCosts

KNOTS = 13                           # corrections at 1, 2, 4, … 4096 tokens, and straight lines between
ROWS = 8                             # for 1, 2-3, 4-7, … sequences; the last for all above
LARGEST_SURPRISE = 0.2               # of a log-ratio in one step: an outlier counts as 22 % more or less
COMMON_RATE = 0.04                   # share of a surprise that every size learns
OWN_RATE = 0.04                      # and that sizes like the observed one learn besides
KEEP = 0.999                         # of what sizes learned for themselves, a step: what is not seen is forgotten


class OnlineCosts:
    """A curve times exp(common + own correction), learned from log(served / measured) of every step (StepCosts).

    Surprises are clipped, so that the corrections follow the typical step and not the outliers. The common part is one
    for both engines, because other work slows both.
    """

    def __init__(self, curve: StepCosts) -> None:
        self._curve = curve
        self._common = 0.0
        self._own = np.zeros((ROWS + 1, KNOTS))      # the last row is the drafter's, over sequences

    def target_seconds(self, sequences: int, tokens: Int64, context: float) -> Float64:
        """Seconds [N] of target steps of tokens [N] (StepCosts)."""
        if not tokens.size:
            return np.zeros(0)
        first = min(sequences, int(tokens.min()))
        every = np.arange(first, int(tokens.max()) + 1)
        corrections = self._common + np.interp(_log2(every), _KNOTS, self._own[_row(sequences)])
        seconds = self._curve.target_seconds(sequences, every, context) * np.exp(corrections)
        result: Float64 = np.maximum.accumulate(seconds)[tokens - first]
        return result

    def drafter_seconds(self, sequences: int) -> float:
        """Seconds of a drafter step (StepCosts)."""
        own = float(_weights(sequences) @ self._own[ROWS])
        return self._curve.drafter_seconds(sequences) * math.exp(self._common + own)

    def observe_target(self, sequences: int, tokens: int, context: float, seconds: float) -> None:
        """A target step of `sequences` requests, `tokens` tokens and mean `context` took so long."""
        if sequences > 0 and tokens > 0:
            expected = float(self._curve.target_seconds(sequences, np.array([tokens]), context)[0])
            self._learn(_row(sequences), tokens, seconds / expected)

    def observe_drafter(self, sequences: int, seconds: float) -> None:
        """A drafter step for `sequences` requests took so long."""
        if sequences > 0:
            self._learn(ROWS, sequences, seconds / self._curve.drafter_seconds(sequences))

    def _learn(self, row: int, size: int, ratio: float) -> None:
        if not (math.isfinite(ratio) and ratio > 0):
            return                   # a clock that was set
        weights = _weights(size)
        surprise = math.log(ratio) - self._common - float(weights @ self._own[row])
        surprise = min(max(surprise, -LARGEST_SURPRISE), LARGEST_SURPRISE)
        self._common += COMMON_RATE * surprise
        self._own *= KEEP
        self._own[row] += OWN_RATE * surprise * weights


_KNOTS = np.arange(KNOTS)


def _log2(sizes: Int64) -> Float64:
    result: Float64 = np.log2(np.maximum(sizes, 1))
    return result


def _row(sequences: int) -> int:
    return min(max(sequences, 1).bit_length(), ROWS) - 1


def _weights(size: int) -> Float64:
    """How much each knot counts at a size, [KNOTS]; they sum to 1."""
    place = min(math.log2(max(size, 1)), KNOTS - 1)
    result: Float64 = np.maximum(0.0, 1.0 - np.abs(_KNOTS - place))
    return result
