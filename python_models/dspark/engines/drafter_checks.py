"""What a drafter step must satisfy before it may touch an engine's state."""

from __future__ import annotations

import numpy as np

from dspark.engines.codec import encode
from dspark.engines.contract import DrafterLimits, DrafterStep, Int32
from dspark.engines.engine_json import REBUILD
from dspark.errors import EngineError


def check_drafter_step(step: DrafterStep, limits: DrafterLimits, lengths: Int32) -> None:
    """Raise EngineError for a step that contradicts its own shapes, the limits, or what the slots hold.

    lengths [max_slots]: positions that each slot has seen.
    """
    encode(step)
    if step.context.shape[1] != limits.feature_size:
        raise EngineError(f"context rows are {step.context.shape[1]} wide, expected {limits.feature_size}")
    if step.uniforms.shape[1] != limits.block_size:
        raise EngineError(f"{step.uniforms.shape[1]} uniforms a request, expected {limits.block_size}")
    if step.slots.size == 0:
        return
    _check_numbers(step, limits)
    _check_context(step, limits, lengths)


def _check_numbers(step: DrafterStep, limits: DrafterLimits) -> None:
    if not 0 <= step.slots.min() <= step.slots.max() < limits.max_slots:
        raise EngineError(f"slots: slot ids must lie in 0..{limits.max_slots - 1}")
    if np.unique(step.slots).size != step.slots.size:
        raise EngineError("slots: a slot occurs twice in one step")
    if not 0 <= step.anchors.min() <= step.anchors.max() < limits.vocabulary_size:
        raise EngineError(f"an anchor lies outside the vocabulary of {limits.vocabulary_size}")
    if not np.all(np.isfinite(step.temperatures) & (step.temperatures >= 0)):
        raise EngineError("temperatures must be finite and at least 0")
    if not np.all((step.uniforms >= 0) & (step.uniforms < 1)):
        raise EngineError("uniforms must lie in [0, 1)")
    if step.coupled.any() and not limits.can_couple:
        raise EngineError(f"this drafter cannot draft by the target's noise; {REBUILD}")


def _check_context(step: DrafterStep, limits: DrafterLimits, lengths: Int32) -> None:
    if step.context_counts.min() < 0 or step.context_counts.sum() != step.context.shape[0]:
        raise EngineError(
            f"context_counts sum to {step.context_counts.sum()}, but {step.context.shape[0]} context rows came"
        )
    if not np.all(np.isfinite(step.context)):
        raise EngineError("a context row holds a value that is not finite")
    for slot, position, count in zip(step.slots, step.positions, step.context_counts, strict=True):
        first = position - count
        if first < 0:
            raise EngineError(f"slot {slot}: {count} context rows end before position {position}: some start below 0")
        # Rows that fill the whole window leave nothing of what the slot held.
        if first not in (0, lengths[slot]) and count < limits.window:
            raise EngineError(
                f"slot {slot} has seen {lengths[slot]} positions, so its context cannot continue at position {first}"
            )
