"""What the tokens behind a sequence add to a target step's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.scheduling.confidence import Float64
from dspark.scheduling.curve_record import TargetPoint


@dataclass(frozen=True)
class ContextCost:
    """Seconds of every token of context: to read its K and V for a sequence, to attend to it from a token."""

    per_sequence: float
    per_token: float

    def of(self, point: TargetPoint) -> float:
        """Seconds of the point's step that its context accounts for."""
        return point.context * (self.per_sequence * point.sequences + self.per_token * point.tokens)

    @staticmethod
    def fit(points: Sequence[TargetPoint]) -> ContextCost:
        """Least squares over the sizes that were measured at several contexts; none below 0, none without such sizes.

        Differences are weighted by 1 / time, for noise grows with it.
        """
        groups: dict[tuple[int, int], list[TargetPoint]] = {}
        for point in points:
            groups.setdefault((point.sequences, point.tokens), []).append(point)
        rows, rises = [], []
        for (sequences, tokens), group in groups.items():
            contexts = np.array([point.context for point in group])
            seconds = np.array([point.median_s for point in group])
            weight = 1.0 / seconds.mean()
            for context, time in zip(contexts - contexts.mean(), seconds - seconds.mean(), strict=True):
                rows.append([weight * context * sequences, weight * context * tokens])
                rises.append(weight * time)
        matrix, wanted = np.array(rows), np.array(rises)
        both = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
        if (both >= 0).all():
            return ContextCost(float(both[0]), float(both[1]))
        alone = [_one(matrix[:, column], wanted) for column in (0, 1)]
        errors = [((wanted - slope * matrix[:, column]) ** 2).sum() for column, slope in enumerate(alone)]
        return ContextCost(alone[0], 0.0) if errors[0] < errors[1] else ContextCost(0.0, alone[1])


def _one(column: Float64, wanted: Float64) -> float:
    """The slope, at least 0, that explains `wanted` by one column."""
    square = float(column @ column)
    return max(0.0, float(column @ wanted) / square) if square else 0.0
