"""What a target step must satisfy before it may touch an engine's state."""

from __future__ import annotations

import numpy as np

from dspark.engines.codec import encode
from dspark.engines.contract import Int32, TargetLimits, TargetStep
from dspark.errors import EngineError


def check_target_step(step: TargetStep, limits: TargetLimits, committed: Int32) -> None:
    """Raise EngineError for a step that contradicts its own shapes, the limits, or what the slots hold.

    committed [max_slots]: tokens that each slot holds.
    """
    encode(step)
    _check_counts(step, limits)
    _check_slots(step, limits, committed)
    if step.tokens.size and not 0 <= step.tokens.min() <= step.tokens.max() < limits.vocabulary_size:
        raise EngineError(f"a token id lies outside the vocabulary of {limits.vocabulary_size}")
    if step.draft_ids.size and not -1 <= step.draft_ids.min() <= step.draft_ids.max() < limits.vocabulary_size:
        raise EngineError(f"a draft candidate lies outside the vocabulary of {limits.vocabulary_size}")


def _check_counts(step: TargetStep, limits: TargetLimits) -> None:
    if step.slots.size and step.token_counts.min() < 1:
        raise EngineError("every request of a step must bring at least one token")
    if step.token_counts.sum() != step.tokens.size:
        raise EngineError(f"token_counts sum to {step.token_counts.sum()}, but {step.tokens.size} tokens came")
    if np.any(step.draft_counts < 0) or np.any(step.draft_counts >= step.token_counts):
        raise EngineError("draft_counts must be at least 0 and below token_counts")
    if step.draft_counts.sum() != step.draft_ids.shape[0]:
        raise EngineError(
            f"draft_counts sum to {step.draft_counts.sum()}, but {step.draft_ids.shape[0]} draft distributions came"
        )
    most = min(limits.max_draft_tokens, step.uniforms.shape[1] - 1)
    if step.slots.size and step.draft_counts.max() > most:
        raise EngineError(f"a request brings {step.draft_counts.max()} drafts; at most {most} are possible")
    if np.any(step.draft_counts[~step.samples]):
        raise EngineError("a request that does not sample cannot bring drafts")


def _check_slots(step: TargetStep, limits: TargetLimits, committed: Int32) -> None:
    for name, slots in (("slots", step.slots), ("released", step.released)):
        if slots.size and not 0 <= slots.min() <= slots.max() < limits.max_slots:
            raise EngineError(f"{name}: slot ids must lie in 0..{limits.max_slots - 1}")
        if np.unique(slots).size != slots.size:
            raise EngineError(f"{name}: a slot occurs twice in one step")
    held = committed.copy()
    held[step.released] = 0
    for slot, position, count in zip(step.slots, step.positions, step.token_counts, strict=True):
        if not 0 <= position <= held[slot]:
            raise EngineError(f"slot {slot} holds {held[slot]} tokens, so a step cannot start at position {position}")
        if position + count > limits.max_context + limits.spare_tokens:
            raise EngineError(
                f"slot {slot} would hold {position + count} tokens, more than the context of {limits.max_context}"
            )
