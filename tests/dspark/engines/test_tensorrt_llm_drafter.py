"""The TensorRT-LLM drafter on a fake TensorRT-LLM against the torch definition; no real one has run it."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.engines.contract import DrafterResult
from dspark.engines.tensorrt_llm_drafter import TensorRtLlmDrafter
from dspark.errors import EngineError
from fake_tensorrt_llm import FakeTensorRtLlm
from tiny_drafters import GAMMA, WINDOW, Case, checkpoints, definition, expected_block, feature_rows, make_step
from tiny_tensorrt_llm import SIZES, build_drafter, install, load_drafter

CASES = [
    Case("none", "qwen3", confidence=False),
    Case("vanilla", "llama"),
    Case("gated", "qwen3", vocabulary=40),
    Case("rnn", "llama", drafted=50),
]
VANILLA = CASES[1]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRtLlm:
    return install(monkeypatch)


def engine_of(case: Case, tmp_path) -> TensorRtLlmDrafter:
    return load_drafter(build_drafter(checkpoints(case), tmp_path / "drafter"))


def assert_drafts(result: DrafterResult, row: int, expected: DrafterResult) -> None:
    np.testing.assert_array_equal(result.tokens[row], expected.tokens)
    np.testing.assert_array_equal(result.draft_ids[row], expected.draft_ids)
    np.testing.assert_allclose(result.draft_probs[row], expected.draft_probs, atol=1e-4)
    np.testing.assert_allclose(result.confidence_logits[row], expected.confidence_logits, atol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.head)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_blocks_are_those_of_the_definition(fake, case, temperature, tmp_path):
    engine, drafter = engine_of(case, tmp_path), definition(case)
    features = {0: feature_rows(4, 1), 2: feature_rows(WINDOW - 1, 2), 3: feature_rows(1, 3)}
    step = make_step(
        list(features), [len(rows) for rows in features.values()], list(features.values()), temperatures=temperature
    )
    result = engine.step(step)
    for row, rows in enumerate(features.values()):
        assert_drafts(result, row, expected_block(drafter, step, row, rows))


def test_a_block_is_overwritten_by_the_context_that_was_accepted(fake, tmp_path):
    engine, drafter = engine_of(VANILLA, tmp_path), definition(VANILLA)
    rows = feature_rows(13, 5)
    engine.step(make_step([1], [6], [rows[:6]]))
    for start, end in ((6, 8), (8, 12), (12, 13)):
        step = make_step([1], [end], [rows[start:end]], seed=end)
        assert_drafts(engine.step(step), 0, expected_block(drafter, step, 0, rows[:end]))


def test_context_is_appended_for_requests_that_do_not_draft(fake, tmp_path):
    engine, drafter = engine_of(VANILLA, tmp_path), definition(VANILLA)
    long = feature_rows(15, 6)                             # more than one run takes
    result = engine.step(make_step([0, 3], [15, 2], [long, feature_rows(2, 7)], drafts=[False, True]))
    assert not result.tokens[0].any() and result.tokens[1].any()
    step = make_step([0], [15], [long[:0]], seed=4)
    assert_drafts(engine.step(step), 0, expected_block(drafter, step, 0, long))


def test_a_block_that_does_not_fit_into_a_run_waits_for_the_next_one_as_a_whole(fake, tmp_path):
    engine, drafter = engine_of(VANILLA, tmp_path), definition(VANILLA)
    features = [feature_rows(SIZES.max_tokens - 1, 8), feature_rows(3, 9)]
    step = make_step([0, 1], [len(rows) for rows in features], features)
    result = engine.step(step)
    for row, rows in enumerate(features):
        assert_drafts(result, row, expected_block(drafter, step, row, rows))


def test_a_slot_may_start_afresh(fake, tmp_path):
    engine, drafter = engine_of(VANILLA, tmp_path), definition(VANILLA)
    engine.step(make_step([2], [9], [feature_rows(9, 1)]))
    rows = feature_rows(3, 2)
    step = make_step([2], [3], [rows])
    assert_drafts(engine.step(step), 0, expected_block(drafter, step, 0, rows))


def test_context_that_does_not_continue_is_refused(fake, tmp_path):
    engine = engine_of(VANILLA, tmp_path)
    engine.step(make_step([0], [4], [feature_rows(4, 1)]))
    with pytest.raises(EngineError, match="cannot continue"):
        engine.step(make_step([0], [9], [feature_rows(2, 1)]))


def test_it_cannot_couple_and_says_so(fake, tmp_path):
    engine = engine_of(VANILLA, tmp_path)
    assert not engine.limits.can_couple
    with pytest.raises(EngineError, match="cannot draft by the target's noise"):
        engine.step(make_step([0], [2], [feature_rows(2, 1)], coupled=True))


def test_every_slot_owns_its_blocks_so_that_ended_sequences_cannot_exhaust_the_pool(fake, tmp_path):
    engine = engine_of(VANILLA, tmp_path)
    shape = engine.record.shape
    assert shape.blocks == SIZES.max_slots * shape.blocks_per_sequence
    assert shape.capacity == SIZES.max_context + GAMMA
    for seed in range(2):
        slots = list(range(SIZES.max_slots))
        rows = [feature_rows(SIZES.max_context, seed) for _ in slots]
        result = engine.step(make_step(slots, [SIZES.max_context] * len(slots), rows, seed=seed))
        assert ((result.draft_probs.sum(-1) - 1) < 1e-5).all()


def test_every_row_sees_the_whole_sequence_by_the_one_mask_that_means_it_in_the_context_phase(fake, tmp_path):
    engine_of(VANILLA, tmp_path)
    assert {attention["mask_type"] for attention in fake.attentions} == {"padding"}
