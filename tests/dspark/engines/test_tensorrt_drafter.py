"""The TensorRT drafter's own code on a fake GPU: the same blocks as the OpenVINO drafter's.

The plans are run by ONNX Runtime, so these tests say nothing of TensorRT's numbers or speed.
"""

from __future__ import annotations

import dataclasses
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from dspark.engines.engine_json import write_record
from dspark.engines.loading import load_drafter, read_drafter_limits
from dspark.engines.openvino_drafter import OpenVinoDrafter
from dspark.engines.tensorrt_drafter import TensorRtDrafter
from dspark.engines.tensorrt_record import BLOCK_PLAN, CONTEXT_PLAN, PlanFacts
from dspark.errors import ConfigurationError, EngineError
from dspark_build.export.facts import build_facts
from dspark_build.export.tensorrt_engine import drafter_record
from dspark_build.export.tensorrt_export import export_drafter_graphs
from dspark_build.export.tensorrt_sizes import TensorRtSizes
from fake_gpu import FakeGpu, write_plan
from tiny_drafters import WINDOW, Case, built, checkpoints, feature_rows, make_step

SIZES = TensorRtSizes(max_slots=16, window=WINDOW, context_rows=8)
CASE = Case("rnn", "qwen3", drafted=50)
_folder = tempfile.TemporaryDirectory(prefix="tiny-tensorrt-")


@cache
def folder(precision: str = "fp32") -> Path:
    target, drafter = checkpoints(CASE)
    out = Path(tempfile.mkdtemp(dir=_folder.name))
    exported = export_drafter_graphs(drafter, target, precision, out / "onnx", SIZES)
    facts = build_facts(target, drafter, precision)
    write_record(out, drafter_record(exported, SIZES, PlanFacts("11.4.0.106", "8.9", "a fake"), facts))
    write_plan(out / CONTEXT_PLAN, exported.context.path, exported.context.profiles)
    write_plan(out / BLOCK_PLAN, exported.block.path, exported.block.profiles)
    return out


@pytest.fixture(autouse=True, scope="module")
def exported() -> None:
    """torch, which looks for CUDA's packages, has done its part before the fake ones are there."""
    folder("fp32")
    folder("fp16")
    built(CASE)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu().install(monkeypatch)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 0.05)])
def test_ragged_steps_draft_what_the_openvino_drafter_drafts(gpu: FakeGpu, precision: str, tolerance: float) -> None:
    ours, theirs = TensorRtDrafter(folder(precision)), OpenVinoDrafter(built(CASE))
    lengths = {4: 0, 0: 0, 8: 0}
    # Prefill, one row each, nothing new for one, past the ring's end, more than a window and than a run's rows.
    for number, counts in enumerate([(5, 1, 9), (1, 1, 1), (3, 0, 2), (9, 2, 4), (1, 4, 2 * WINDOW + 3), (2, 1, 1)]):
        new = [feature_rows(count, 100 * number + slot) for slot, count in zip(lengths, counts, strict=True)]
        lengths = {slot: length + count for (slot, length), count in zip(lengths.items(), counts, strict=True)}
        drafts = [True, number != 2, True]
        step = make_step(list(lengths), list(lengths.values()), new, drafts=drafts, temperatures=0.7, seed=number)
        given, expected = ours.step(step), theirs.step(step)
        rows = np.flatnonzero(drafts)
        np.testing.assert_allclose(
            given.confidence_logits[rows, 0], expected.confidence_logits[rows, 0], atol=tolerance
        )
        if precision == "fp32":          # half precision may draw another token, and all that follows from it
            np.testing.assert_array_equal(given.tokens[rows], expected.tokens[rows])
            np.testing.assert_array_equal(given.draft_ids[rows], expected.draft_ids[rows])
        np.testing.assert_allclose(
            given.draft_probs[rows, 0], expected.draft_probs[rows, 0], atol=tolerance
        )


def test_it_cannot_draft_by_noise_and_says_so(gpu: FakeGpu) -> None:
    assert not read_drafter_limits(folder()).can_couple
    with pytest.raises(EngineError, match="cannot draft by the target's noise"):
        load_drafter(folder()).step(make_step([0], [1], [feature_rows(1, 0)], coupled=True))


def test_everything_it_allocates_is_given_back(gpu: FakeGpu) -> None:
    drafter = TensorRtDrafter(folder())
    drafter.step(make_step([3], [5], [feature_rows(5, 1)]))
    drafter.close()
    assert not gpu.memory


def test_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = dataclasses.replace(FakeGpu(), capability=(12, 0)).install(monkeypatch)
    with pytest.raises(ConfigurationError, match=r"built for compute capability 8\.9.*has 12\.0"):
        load_drafter(folder())
    assert "cudaMalloc" not in gpu.calls
