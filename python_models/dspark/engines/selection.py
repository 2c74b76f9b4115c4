"""Which tokens of a step leave the graph as logits and as features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Float32, Int32, TargetStep
from dspark.engines.rows import begins


@dataclass(frozen=True)
class Selection:
    """Which of a step's T tokens get logits and features, request after request."""

    logit_tokens: Int32
    logit_counts: Int32              # [R] draft_counts + 1, or 0
    feature_tokens: Int32
    feature_counts: Int32            # [R] token_counts, or 0


def select(step: TargetStep) -> Selection:
    last = begins(step.token_counts)[1:]
    logit_counts = np.where(step.samples, step.draft_counts + 1, 0).astype(np.int32)
    feature_counts = np.where(step.wants_features, step.token_counts, 0).astype(np.int32)
    return Selection(
        _last_tokens(last, logit_counts), logit_counts, _last_tokens(last, feature_counts), feature_counts
    )


def _last_tokens(ends: Int32, counts: Int32) -> Int32:
    """The last `counts[r]` tokens before `ends[r]`, for every request r."""
    offsets = np.arange(counts.sum()) - np.repeat(begins(counts)[:-1], counts)
    tokens: Int32 = (np.repeat(ends - counts, counts) + offsets).astype(np.int32)
    return tokens


def committed_features(features: Float32, selection: Selection, counts: Int32) -> Float32:
    """The first `counts[r]` of every request's feature rows [A, d], copied out of the graph's memory."""
    offsets = np.arange(features.shape[0]) - np.repeat(begins(selection.feature_counts)[:-1], selection.feature_counts)
    kept: Float32 = features[offsets < np.repeat(counts, selection.feature_counts)]
    return kept
