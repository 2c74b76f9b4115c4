"""Exports of the drafter: the ONNX files compute what the OpenVINO engine computes, and how exactness is settled."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from dspark.engines.context_rings import ContextRings
from dspark.engines.drafter_graphs import (
    BLOCK_INPUTS,
    BLOCK_OUTPUTS,
    CONTEXT_INPUTS,
    COUPLING_INPUTS,
    DrafterGraphs,
    pool_names,
)
from dspark.engines.drafter_record import RunSizes
from dspark.errors import ConfigurationError
from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.drafters import (
    initialise_drafter,
    load_drafter_checkpoint,
    reduce_vocabulary,
    save_drafter_checkpoint,
)
from dspark_build.export.drafter import DrafterSizes, build_drafter
from dspark_build.export.drafter_onnx import BLOCK_ONNX, CONTEXT_ONNX, export_drafter_onnx
from dspark_build.export.drafter_probe import Run, largest_exact_runs
from dspark_build.export.row_exact import row_exact
from dspark_build.tiny import make_tiny_target

SLOTS, WINDOW, GAMMA, VOCABULARY = 4, 12, 3, 4200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random target and an rnn drafter for it, whose graph holds everything a graph can hold."""
    root = tmp_path_factory.mktemp("export")
    target = make_tiny_target(root / "target", "qwen3", vocabulary=VOCABULARY, hidden=32, intermediate=48, head_size=8)
    drafter = initialise_drafter(
        target,
        target_layer_ids=[0, 1],
        start_layers=[1],
        block_size=GAMMA,
        markov_head_type="rnn",
        markov_rank=8,
        mask_token_id=4000,
    )
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in drafter.markov_head.parameters():
            parameter.normal_(0, 0.6, generator=random)
    return target, save_drafter_checkpoint(drafter, root / "drafter", target)


@pytest.mark.parametrize("drafted", [VOCABULARY, 900])
def test_the_onnx_graphs_agree_with_the_openvino_engine(
    drafted: int, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    target, checkpoint = folders
    if drafted < VOCABULARY:
        reduced = reduce_vocabulary(load_drafter_checkpoint(checkpoint, target), np.arange(3, 3 + 2 * drafted, 2))
        checkpoint = save_drafter_checkpoint(reduced, tmp_path / "reduced", target)
    record = build_drafter(checkpoint, target, "fp32", tmp_path / "drafter", DrafterSizes(SLOTS, WINDOW))
    export_drafter_onnx(load_drafter_checkpoint(checkpoint, target), WINDOW, SLOTS, tmp_path / "onnx")
    rings = ContextRings(2, SLOTS, WINDOW, record.kv_heads, record.head_size)
    graphs = DrafterGraphs(tmp_path / "drafter", record, rings.pools)
    random = np.random.default_rng(0)

    context = onnxruntime.InferenceSession(tmp_path / "onnx" / CONTEXT_ONNX)
    for rows in (1, 5):
        features = random.standard_normal((rows, 32), np.float32)
        positions = np.arange(40, 40 + rows, dtype=np.int32)
        expected = context.run(pool_names(1), dict(zip(CONTEXT_INPUTS, (features, positions), strict=True)))
        for ours, theirs in zip(graphs.context(features, positions), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)

    for pool in rings.pools:
        pool[:] = random.standard_normal(pool.shape, np.float32)
    block = onnxruntime.InferenceSession(tmp_path / "onnx" / BLOCK_ONNX)
    for requests in (1, 3):
        inputs = (
            random.permutation(SLOTS)[:requests].astype(np.int32),
            random.integers(0, VOCABULARY, requests, dtype=np.int32),
            random.integers(WINDOW, 100, requests, dtype=np.int32),
            random.integers(1, WINDOW + 1, requests, dtype=np.int32),
            np.array([0.8, 0.0, 1.0], np.float32)[:requests],
            random.random((requests, GAMMA), np.float32),
            random.integers(-(2**31), 2**31, (requests, GAMMA), np.int32),
            np.array([False, True, True])[:requests] ^ (requests == 1),
        )
        names = (*BLOCK_INPUTS, *COUPLING_INPUTS, *pool_names(1))
        feed = dict(zip(names, (*inputs, *rings.pools), strict=True))
        tokens, confidences, ids, probabilities = block.run(list(BLOCK_OUTPUTS), feed)
        ours = graphs.block(inputs)
        np.testing.assert_array_equal(ours.tokens, tokens)
        np.testing.assert_allclose(ours.confidence_logits, confidences, atol=1e-4)
        np.testing.assert_allclose(ours.draft_probs, probabilities, atol=1e-5)
        # Greedy ids beyond the first are candidates of probability 0, still in order of their logits.
        assert (ours.draft_ids == ids).mean() > 0.99


def test_an_onnx_graph_without_coupling_has_no_bitwise_operators(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, checkpoint = folders
    drafter = load_drafter_checkpoint(checkpoint, target)
    operators = {}
    for can_couple in (False, True):
        folder = tmp_path / str(can_couple)
        export_drafter_onnx(drafter, WINDOW, SLOTS, folder, can_couple)
        graph = onnx.load(folder / BLOCK_ONNX).graph
        operators[can_couple] = {node.op_type for node in graph.node}
        assert ({value.name for value in graph.input} >= set(COUPLING_INPUTS)) == can_couple
    assert {name for name in operators[False] if name.startswith("Bit")} == set()
    assert {name for name in operators[True] if name.startswith("Bit")}


def test_an_engine_folder_says_what_it_was_built_from(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, checkpoint = folders
    record = build_drafter(checkpoint, target, "int8", tmp_path / "drafter", DrafterSizes(SLOTS, WINDOW))
    values = json.loads((tmp_path / "drafter" / "engine.json").read_text())
    assert values["engine"] == "openvino-drafter"
    assert values["markov_head_type"] == "rnn"
    assert values["limits"] == dataclasses.asdict(record.limits)
    assert values["facts"]["checkpoint_hash"] == checkpoint_hash(target)
    assert values["facts"]["drafter_hash"] == checkpoint_hash(checkpoint)
    assert values["facts"]["precision"] == "int8"
    assert set(values["facts"]["tools"]) == {"openvino", "torch", "nncf", "numpy"}


@pytest.mark.parametrize(("precision", "sizes"), [("fp16", DrafterSizes()), ("fp32", DrafterSizes(window=0))])
def test_what_cannot_be_built_is_refused_before_anything_is_written(
    precision: str, sizes: DrafterSizes, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    target, checkpoint = folders
    with pytest.raises(ConfigurationError):
        build_drafter(checkpoint, target, precision, tmp_path / "drafter", sizes)
    assert not list(tmp_path.iterdir())


def test_the_row_exact_arrangement_computes_the_same_and_leaves_the_drafter_alone(folders: tuple[Path, Path]) -> None:
    drafter = load_drafter_checkpoint(folders[1], folders[0])
    before = [name for name, _ in drafter.named_parameters()]
    hidden, tokens = torch.randn(5, 32), torch.arange(5)
    with torch.no_grad():
        arranged = row_exact(drafter)
        expected = drafter.head_step(hidden, drafter.lm_head(hidden), tokens, drafter.start_head(hidden))
        given = arranged.head_step(hidden, drafter.lm_head(hidden), tokens, drafter.start_head(hidden))
        for ours, theirs in zip(given, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(arranged.layers[0].mlp(hidden), drafter.layers[0].mlp(hidden), atol=1e-5, rtol=1e-5)
    assert [name for name, _ in drafter.named_parameters()] == before


def kernels(changes_at: int, lone_row: bool) -> Run:
    """Outputs of a graph whose rounding changes from some number of rows on, and perhaps for a single row."""
    return lambda rows: [rows + (1e-6 if len(rows) >= changes_at else 0) + (1e-6 if lone_row and len(rows) == 1 else 0)]


@pytest.mark.parametrize(
    ("changes_at", "lone_row", "expected"),
    [
        (99, False, RunSizes(1, 32)),
        (99, True, RunSizes(2, 32)),
        (12, True, RunSizes(2, 11)),
        (2, False, RunSizes(2, 32)),
    ],
)
def test_runs_are_as_large_as_rounding_allows(changes_at: int, lone_row: bool, expected: RunSizes) -> None:
    assert largest_exact_runs(kernels(changes_at, lone_row), 32) == expected


def test_runs_too_small_to_be_worth_it_are_not_taken() -> None:
    places_matter = lambda rows: [rows + 1e-6 * np.arange(len(rows))]  # noqa: E731
    assert largest_exact_runs(places_matter, 32) == RunSizes(1, 1)
    assert largest_exact_runs(places_matter, 32, floor=4) is None
