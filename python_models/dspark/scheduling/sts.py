"""Sequential temperature scaling and what judges it: calibration error, reliability and ROC-AUC (section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Bool, Float32
from dspark.scheduling.confidence import Float64, Int64, conditional

TEMPERATURES = np.logspace(-1.0, 1.0, 41)        # the grid that SGLang's STS searches too (section 8)
BINS = 15
FLAT = 0.0005                        # calibration errors that differ by less are the same: of noise, not of fit


@dataclass(frozen=True)
class Reliability:
    """Predictions by equal-width bins of [0, 1]; means are 0 where a bin is empty."""

    counts: Int64                    # [BINS]
    predicted: Float64               # [BINS] mean prediction
    observed: Float64                # [BINS] share of ones

    @property
    def error(self) -> float:
        """Expected calibration error: |predicted - observed| of the bins, averaged over all predictions; 0 of none."""
        return float((self.counts * np.abs(self.predicted - self.observed)).sum() / max(1, int(self.counts.sum())))


def reliability(predicted: Float64, observed: Bool) -> Reliability:
    """Predictions [N] in [0, 1] against what came true [N]."""
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    some = np.maximum(1, counts)
    return Reliability(
        counts, np.bincount(bins, predicted, BINS) / some, np.bincount(bins, observed.astype(np.float64), BINS) / some
    )


def expected_calibration_error(predicted: Float64, observed: Bool) -> float:
    """ECE of predictions [N] against what came true [N], over 15 equal-width bins; 0 of none."""
    return reliability(predicted, observed).error


def roc_auc(scores: Float64, observed: Bool) -> float | None:
    """The chance that a true case scores above a false one, ties counting half; None where either kind is missing."""
    true = int(observed.sum())
    false = len(observed) - true
    if not true or not false:
        return None
    _, rank, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mid_ranks = (counts.cumsum() - (counts - 1) / 2.0)[rank]
    return float((mid_ranks[observed].sum() - true * (true + 1) / 2.0) / (true * false))


def fit_temperatures(logits: Float32 | Float64, survived: Bool, known: Bool | None = None) -> Float64:
    """STS temperatures [gamma] of confidence logits [N, gamma], by labels y_k: x_1..x_k were all accepted [N, gamma].

    For k = 1..gamma in order, T_k is the one of 41 in [0.1, 10] with the least ECE of a_k = prod_{i<=k}
    sigmoid(logit_i / T_i) against y_k, T_1..T_{k-1} kept. Where the error is flat it is the nearest to 1, and 1 where
    no label is known: `known` [N, gamma] (None: all) leaves out labels of drafts that were never verified.
    """
    gamma = logits.shape[1]
    known = np.ones(logits.shape, np.bool_) if known is None else known
    nearest_first = TEMPERATURES[np.abs(np.log(TEMPERATURES)).argsort(kind="stable")]
    chosen: Float64 = np.ones(gamma)
    before: Float64 = np.ones(len(logits))           # a_{k-1}
    for k in range(gamma):
        rows = known[:, k]
        column = np.broadcast_to(logits[:, k : k + 1], (len(logits), len(nearest_first)))
        steps = conditional(column, nearest_first)                                # [N, 41]
        best = 0
        if rows.any():
            errors = np.array([
                expected_calibration_error(before[rows] * steps[rows, t], survived[rows, k])
                for t in range(len(nearest_first))
            ])
            best = int((errors <= errors.min() + FLAT).argmax())
        chosen[k] = nearest_first[best]
        before = before * steps[:, best]
    return chosen
