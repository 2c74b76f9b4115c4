"""The OpenVINO drafter against the torch definition, and the contract's promises about slots and neighbours."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import openvino
import pytest
import torch
from dspark.engines.contract import DrafterResult
from dspark.engines.drafter_graphs import BLOCK_GRAPH
from dspark.engines.engine_json import ENGINE_JSON
from dspark.engines.loading import load_drafter, read_drafter_limits
from dspark.engines.openvino_drafter import OpenVinoDrafter
from dspark.errors import EngineError
from dspark.verification import coupled_choice, draft_distribution
from dspark_build.export.drafter_openvino import convert_block
from scipy.stats import chisquare
from tiny_drafters import (
    GAMMA,
    SLOTS,
    WINDOW,
    Case,
    built,
    definition,
    dense,
    expected_block,
    feature_rows,
    make_step,
)

CASES = [
    Case("none", "qwen3", confidence=False),
    Case("vanilla", "llama", vocabulary=4500),
    Case("gated", "qwen3", vocabulary=40),
    Case("rnn", "llama"),
    Case("rnn", "qwen3", drafted=50),
    Case("vanilla", "llama", vocabulary=9200, drafted=4500),
]
VANILLA = CASES[1]
INT8 = Case("vanilla", "qwen3", precision="int8", drafted=150)


def row(result: DrafterResult, index: int) -> DrafterResult:
    return DrafterResult(**{f.name: getattr(result, f.name)[index] for f in dataclasses.fields(result)})


def assert_identical(some: DrafterResult, other: DrafterResult) -> None:
    for field in dataclasses.fields(DrafterResult):
        np.testing.assert_array_equal(getattr(some, field.name), getattr(other, field.name), err_msg=field.name)


def assert_close(result: DrafterResult, expected: DrafterResult, vocabulary: int) -> None:
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    np.testing.assert_allclose(result.confidence_logits, expected.confidence_logits, atol=1e-4)
    np.testing.assert_allclose(
        dense(result.draft_ids, result.draft_probs, vocabulary),
        dense(expected.draft_ids, expected.draft_probs, vocabulary),
        atol=1e-5,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.head}-{case.flavour}-{case.drafted}")
def test_ragged_steps_draft_what_the_torch_definition_drafts(case: Case) -> None:
    engine, drafter = OpenVinoDrafter(built(case)), definition(case)
    seen = {slot: feature_rows(0, slot) for slot in (4, 0, 8)}
    # Steps: prefill, one row each, nothing new for one of them, past the end of the ring, more than a whole window.
    for number, counts in enumerate([(5, 1, 9), (1, 1, 1), (3, 0, 2), (9, 2, 4), (1, 4, 2 * WINDOW + 3), (2, 1, 1)]):
        new = [feature_rows(count, 100 * number + slot) for slot, count in zip(seen, counts, strict=True)]
        seen = {slot: np.concatenate([rows, part]) for (slot, rows), part in zip(seen.items(), new, strict=True)}
        step = make_step(
            list(seen),
            [len(rows) for rows in seen.values()],
            new,
            drafts=[True, number != 2, True],
            temperatures=[0.0, 1.0, 0.4],
            seed=number,
            coupled=[number == 4, number % 2 == 1, number > 2],
        )
        result = engine.step(step)
        for r, (slot, rows) in enumerate(seen.items()):
            if step.drafts[r]:
                assert_close(row(result, r), expected_block(drafter, step, r, rows), case.vocabulary)
                assert result.draft_ids.shape[-1] == min(64, case.drafted or case.vocabulary), slot


def test_limits_say_what_the_drafter_can_do() -> None:
    limits = read_drafter_limits(built(CASES[0]))
    assert (limits.block_size, limits.window, limits.max_slots) == (GAMMA, WINDOW, SLOTS)
    assert not limits.has_confidence
    result = load_drafter(built(CASES[0])).step(make_step([0], [1], [feature_rows(1, 0)]))
    assert np.isnan(result.confidence_logits).all()


@pytest.mark.parametrize("case", [VANILLA, INT8], ids=["fp32", "int8"])
def test_context_appended_row_by_row_equals_context_given_at_once(case: Case) -> None:
    engine = OpenVinoDrafter(built(case))
    features = feature_rows(2 * WINDOW + 5, 1)
    end = len(features)
    at_once = engine.step(make_step([3], [end], [features]))
    for start in range(end):
        last = engine.step(make_step([3], [start + 1], [features[start : start + 1]], drafts=[start + 1 == end]))
    assert_identical(last, at_once)


def test_a_slot_that_starts_again_forgets_its_past() -> None:
    engine = OpenVinoDrafter(built(VANILLA))
    engine.step(make_step([2], [WINDOW + 3], [feature_rows(WINDOW + 3, 1)]))
    again = engine.step(make_step([2], [4], [feature_rows(4, 2)]))
    assert_identical(again, OpenVinoDrafter(built(VANILLA)).step(make_step([2], [4], [feature_rows(4, 2)])))


def test_rows_that_fill_the_window_need_no_past() -> None:
    engine, drafter = OpenVinoDrafter(built(VANILLA)), definition(VANILLA)
    features = feature_rows(WINDOW + 9, 5)
    step = make_step([6], [len(features)], [features[9:]])
    assert_close(row(engine.step(step), 0), expected_block(drafter, step, 0, features), VANILLA.vocabulary)


@pytest.mark.parametrize("case", [VANILLA, INT8], ids=["fp32", "int8"])
def test_a_request_drafts_the_same_alone_and_among_neighbours(case: Case) -> None:
    alone, crowded = OpenVinoDrafter(built(case)), OpenVinoDrafter(built(case))
    random = np.random.default_rng(3)
    lengths = dict.fromkeys(range(SLOTS), 0)
    for number in range(6):
        counts = random.integers(1, 9, SLOTS)
        new = [feature_rows(count, 1000 * number + slot) for slot, count in enumerate(counts)]
        lengths = {slot: length + counts[slot] for slot, length in lengths.items()}
        company = random.permutation(SLOTS)
        together = crowded.step(
            make_step(company, [lengths[slot] for slot in company], [new[slot] for slot in company], seed=number)
        )
        single = alone.step(make_step([5], [lengths[5]], [new[5]], seed=number))
        assert_identical(row(together, int(np.flatnonzero(company == 5)[0])), row(single, 0))


def test_a_greedy_block_is_the_argmax_given_its_predecessors() -> None:
    drafter = definition(VANILLA)
    features = feature_rows(7, 4)
    step = make_step([1], [7], [features], temperatures=0.0)
    result = OpenVinoDrafter(built(VANILLA)).step(step)
    previous = torch.tensor([[step.anchors[0], *result.tokens[0, :-1]]]).long()
    with torch.no_grad():
        hidden = drafter.backbone(
            drafter.block_embeddings(previous[:, 0]),
            drafter.block_positions(torch.tensor([7])),
            torch.from_numpy(features)[None],
            torch.ones(1, 1, 7 + GAMMA, dtype=torch.bool),
        )
        best = drafter.head_logits(hidden, previous).argmax(-1)
    np.testing.assert_array_equal(result.tokens, best.numpy())
    np.testing.assert_array_equal(result.draft_ids[..., 0], result.tokens)
    np.testing.assert_array_equal(result.draft_probs[..., 0], 1)
    np.testing.assert_array_equal(result.draft_probs[..., 1:], 0)


def test_drawn_tokens_follow_the_returned_distribution() -> None:
    engine = OpenVinoDrafter(built(VANILLA))
    slots = list(range(SLOTS))
    step = make_step(slots, [3] * SLOTS, [feature_rows(3, 9)] * SLOTS, temperatures=0.7)
    step = dataclasses.replace(step, anchors=np.full(SLOTS, 17, np.int32))
    engine.step(step)
    random = np.random.default_rng(11)
    drawn, after_first = [], {}
    for _ in range(350):
        result = engine.step(
            dataclasses.replace(
                step,
                context_counts=0 * step.context_counts,
                context=step.context[:0],
                uniforms=random.random((SLOTS, GAMMA), np.float32),
            )
        )
        drawn.append(result.tokens)
        for r in range(SLOTS):
            after_first[result.tokens[r, 0]] = (result.draft_ids[r, 1], result.draft_probs[r, 1])
    tokens = np.concatenate(drawn)
    assert_follows(tokens[:, 0], result.draft_ids[0, 0], result.draft_probs[0, 0])
    favourite = np.bincount(tokens[:, 0]).argmax()
    assert_follows(tokens[tokens[:, 0] == favourite, 1], *after_first[favourite])


@pytest.mark.parametrize("case", [VANILLA, INT8], ids=["fp32", "int8"])
def test_a_coupled_block_is_what_the_noise_chooses_from_the_returned_distribution(case: Case) -> None:
    engine, differing = OpenVinoDrafter(built(case)), 0
    slots, context = list(range(SLOTS)), [feature_rows(3, 9)] * SLOTS
    for seed in range(40):
        step = make_step(slots, [3] * SLOTS, context, temperatures=0.9, seed=seed, coupled=True)
        result = engine.step(step)
        for r in slots:
            for k in range(GAMMA):
                law = draft_distribution(result.draft_ids[r, k], result.draft_probs[r, k])
                differing += coupled_choice(law, int(step.noise_keys[r, k])) != result.tokens[r, k]
    assert differing <= 1                            # of 1080: fp32 cannot tell two arrivals at one time apart


def test_a_coupled_block_does_not_depend_on_uniforms_nor_an_uncoupled_one_on_noise() -> None:
    engine = OpenVinoDrafter(built(VANILLA))
    for coupled in (True, False):
        step = make_step([0, 1], [3, 2], [feature_rows(3, 0), feature_rows(2, 1)], coupled=coupled)
        other = dataclasses.replace(
            step, **({"uniforms": 1 - step.uniforms} if coupled else {"noise_keys": ~step.noise_keys})
        )
        assert_identical(engine.step(step), engine.step(other))


def test_an_engine_of_an_older_build_drafts_as_before_but_cannot_couple(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built(VANILLA), tmp_path / "drafter"))
    block = convert_block(definition(VANILLA), WINDOW, SLOTS, can_couple=False)
    openvino.save_model(block, folder / BLOCK_GRAPH, compress_to_fp16=False)
    values = json.loads((folder / ENGINE_JSON).read_text())
    del values["limits"]["can_couple"]
    (folder / ENGINE_JSON).write_text(json.dumps(values))
    engine, step = OpenVinoDrafter(folder), make_step([4, 2], [5, 2], [feature_rows(5, 1), feature_rows(2, 1)])
    assert not read_drafter_limits(folder).can_couple
    assert_identical(engine.step(step), OpenVinoDrafter(built(VANILLA)).step(step))
    with pytest.raises(EngineError, match="cannot draft by the target's noise; run 'dspark build' again"):
        engine.step(dataclasses.replace(step, coupled=np.ones(2, np.bool_)))


def assert_follows(tokens: np.ndarray, ids: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square at the level 0.001, over the candidates expected at least five times and the rest as one."""
    expected = probabilities.astype(np.float64) * len(tokens)
    observed = np.array([(tokens == candidate).sum() for candidate in ids])
    assert observed.sum() == len(tokens), "a token outside the candidates was drawn"
    often = expected >= 5
    if not often.all():
        observed = np.append(observed[often], observed[~often].sum())
        expected = np.append(expected[often], expected[~often].sum())
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 0.001


def test_the_largest_uniform_draws_a_candidate_that_can_be_drawn() -> None:
    engine = OpenVinoDrafter(built(VANILLA))
    for temperature in (1.0, 0.05, 1e-4, 1e-30):
        step = make_step([0], [5], [feature_rows(5, 2)], temperatures=temperature)
        result = engine.step(dataclasses.replace(step, uniforms=np.full((1, GAMMA), 1 - 2**-24, np.float32)))
        chosen = result.draft_ids == result.tokens[..., None]
        assert (chosen.sum(-1) == 1).all()
        assert (result.draft_probs[chosen] > 0).all()
        np.testing.assert_allclose(result.draft_probs.sum(-1), 1, atol=1e-6)


def test_candidates_are_distinct() -> None:
    result = OpenVinoDrafter(built(CASES[1])).step(make_step([0, 1], [2, 1], [feature_rows(2, 0), feature_rows(1, 1)]))
    assert all(np.unique(ids).size == ids.size for ids in result.draft_ids.reshape(-1, result.draft_ids.shape[-1]))


def test_an_empty_step_and_a_step_without_drafts_are_fine() -> None:
    engine = OpenVinoDrafter(built(VANILLA))
    assert engine.step(make_step([], [], [])).tokens.shape == (0, GAMMA)
    result = engine.step(make_step([0], [2], [feature_rows(2, 0)], drafts=[False]))
    assert np.isnan(result.confidence_logits).all()
    assert not result.draft_probs.any()
