"""A drafter step that contradicts limits or slots is refused before it touches anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from dspark.engines.context_rings import ContextRings
from dspark.engines.contract import DrafterLimits, DrafterStep
from dspark.engines.drafter_checks import check_drafter_step
from dspark.errors import EngineError
from tiny_drafters import GAMMA, HIDDEN, SLOTS, WINDOW, feature_rows, make_step

LIMITS = DrafterLimits(
    vocabulary_size=40,
    feature_size=HIDDEN,
    block_size=GAMMA,
    candidates=40,
    max_slots=SLOTS,
    window=WINDOW,
    has_confidence=True,
)
LENGTHS = np.array([6] * SLOTS, np.int32)


def good_step() -> DrafterStep:
    return make_step([0, 3], [8, 4], [feature_rows(2, 0), feature_rows(4, 1)])


def changed(**fields: object) -> Callable[[], DrafterStep]:
    return lambda: dataclasses.replace(good_step(), **fields)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (changed(slots=int32(0, SLOTS)), "slot ids"),
        (changed(slots=int32(-1, 3)), "slot ids"),
        (changed(slots=int32(3, 3)), "twice"),
        (changed(anchors=int32(40, 0)), "vocabulary"),
        (changed(anchors=int32(0, -1)), "vocabulary"),
        (changed(positions=int32(9, 4)), "cannot continue at position 7"),
        (changed(positions=int32(8, 3)), "below 0"),
        (changed(context_counts=int32(3, 4)), "context_counts sum to 7"),
        (changed(context_counts=int32(-1, 7)), "context_counts"),
        (changed(context=np.full((6, HIDDEN), np.nan, np.float32)), "not finite"),
        (changed(context=np.zeros((6, HIDDEN + 1), np.float32)), "wide"),
        (changed(temperatures=np.array([1, -1], np.float32)), "temperatures"),
        (changed(temperatures=np.array([1, np.nan], np.float32)), "temperatures"),
        (changed(uniforms=np.ones((2, GAMMA), np.float32)), "uniforms"),
        (changed(uniforms=np.zeros((2, GAMMA + 1), np.float32)), "uniforms"),
        (changed(coupled=np.array([False, True])), "target's noise"),
        (changed(noise_keys=np.zeros((2, GAMMA + 1), np.int32)), "noise_keys"),
        (changed(drafts=np.ones(3, np.bool_)), "drafts"),
        (changed(slots=np.array([0, 3], np.int64)), "int64"),
    ],
)
def test_a_bad_step_is_refused_with_its_reason(step: Callable[[], DrafterStep], complaint: str) -> None:
    with pytest.raises(EngineError, match=complaint):
        check_drafter_step(step(), LIMITS, LENGTHS)


def test_a_good_step_passes() -> None:
    check_drafter_step(good_step(), LIMITS, LENGTHS)


def test_only_the_last_window_of_new_rows_is_computed() -> None:
    rings = ContextRings(pools=1, slots=2, window=4, kv_heads=1, head_size=1)
    step = make_step([1, 0], [9, 2], [feature_rows(9, 0), feature_rows(2, 1)])
    rows = rings.plan(step)
    assert rows.sources.tolist() == [5, 6, 7, 8, 9, 10]
    assert rows.slots.tolist() == [1, 1, 1, 1, 0, 0]
    assert rows.positions.tolist() == [5, 6, 7, 8, 0, 1]
