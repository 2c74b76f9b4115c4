"""Predicted confidence against what was accepted, while serving, and the correction that follows from it."""

from __future__ import annotations

import numpy as np

from dspark.engines.contract import Bool
from dspark.scheduling.confidence import Float64

KEEP = 0.995                         # of the record, per judged draft: some hundred drafts a position are remembered
PRIOR = 8.0                          # drafts that were as accepted as predicted, before any were seen
SIGNIFICANT = 4.0                    # standard deviations; rounds of one request resemble each other, so more than two
MATERIAL = 0.05                      # of acceptance: less is not worth a warning, however certain


class SurvivalDrift:
    """A decayed record, by position, of drafts whose predecessors in the block were all accepted.

    `corrections` depend on earlier rounds alone, never on the draw at hand: rules that use them stay lossless.
    """

    def __init__(self, gamma: int) -> None:
        self._judged = np.zeros(gamma)
        self._predicted = np.zeros(gamma)
        self._accepted = np.zeros(gamma)
        self._variance = np.zeros(gamma)

    def observe(self, confidence: Float64, verified: int, accepted: int) -> None:
        """A block of calibrated confidence [gamma], of which `verified` drafts were judged in order, is over."""
        judged = slice(0, min(verified, accepted + 1))
        for record, seen in (
            (self._judged, 1.0), (self._predicted, confidence[judged]),
            (self._accepted, np.arange(judged.stop) < accepted),
        ):
            record[judged] = KEEP * record[judged] + seen
        chance = confidence[judged]
        self._variance[judged] = KEEP**2 * self._variance[judged] + chance * (1.0 - chance)

    def corrections(self) -> Float64:
        """Factors [gamma] by which confidence has turned out too low or too high: (accepted + m) / (predicted + m).

        m is the expected acceptance of PRIOR drafts, which pulls the factor towards 1 while little was seen.
        """
        with np.errstate(invalid="ignore"):
            mean = np.where(self._judged > 0, self._predicted / np.maximum(self._judged, 1e-9), 0.5)
        result: Float64 = (self._accepted + PRIOR * mean) / (self._predicted + PRIOR * mean + 1e-12)
        return result

    def parted(self) -> Bool:
        """Positions [gamma] where acceptance differs from what confidence promised, by more than chance and by much.

        `dspark calibrate` is due again then: by the drafts remembered, were each accepted with its confidence, a gap of
        SIGNIFICANT standard deviations would be seen once in thousands of times. One draft's worth of gap is forgiven.
        """
        gap = np.abs(self._accepted - self._predicted)
        chance = SIGNIFICANT * np.sqrt(self._variance) + 1.0
        result: Bool = gap > np.maximum(chance, MATERIAL * self._judged)
        return result
