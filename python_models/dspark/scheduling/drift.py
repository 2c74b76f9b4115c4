"""Predicted confidence against what was accepted, while serving, and the correction that follows from it."""

from __future__ import annotations

import numpy as np

from dspark.scheduling.confidence import Float64

KEEP = 0.995                         # of the record, per judged draft: some hundred drafts a position are remembered
PRIOR = 8.0                          # drafts that were as accepted as predicted, before any were seen


class SurvivalDrift:
    """A decayed record, by position, of drafts whose predecessors in the block were all accepted.

    `corrections` depend on earlier rounds alone, never on the draw at hand: rules that use them stay lossless.
    """

    def __init__(self, gamma: int) -> None:
        self._judged = np.zeros(gamma)
        self._predicted = np.zeros(gamma)
        self._accepted = np.zeros(gamma)

    def observe(self, confidence: Float64, verified: int, accepted: int) -> None:
        """A block of calibrated confidence [gamma], of which `verified` drafts were judged in order, is over."""
        judged = slice(0, min(verified, accepted + 1))
        for record, seen in (
            (self._judged, 1.0), (self._predicted, confidence[judged]),
            (self._accepted, np.arange(judged.stop) < accepted),
        ):
            record[judged] = KEEP * record[judged] + seen

    def corrections(self) -> Float64:
        """Factors [gamma] by which confidence has turned out too low or too high: (accepted + m) / (predicted + m).

        m is the expected acceptance of PRIOR drafts, which pulls the factor towards 1 while little was seen.
        """
        with np.errstate(invalid="ignore"):
            mean = np.where(self._judged > 0, self._predicted / np.maximum(self._judged, 1e-9), 0.5)
        result: Float64 = (self._accepted + PRIOR * mean) / (self._predicted + PRIOR * mean + 1e-12)
        return result
