"""`dspark build --engine tensorrt` with TensorRT-RTX for a compiler and a fake GPU: folders and refusals only."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from dspark.engines import tensorrt_checks
from dspark.engines.contract import EngineFolder
from dspark.engines.engine_json import read_record
from dspark.engines.tensorrt_record import TensorRtDrafterRecord, TensorRtTargetRecord
from dspark.errors import ConfigurationError
from dspark_build.drafters import load_drafter_checkpoint
from dspark_build.export import tensorrt_engine
from dspark_build.export.half import narrow_drafter
from dspark_build.export.tensorrt_engine import build_tensorrt_drafter, build_tensorrt_target
from dspark_build.export.tensorrt_sizes import TensorRtSizes
from dspark_build.gpu_check import make_small_model
from dspark_client import build as build_verb

rtx = pytest.importorskip("tensorrt_rtx")

SIZES = TensorRtSizes(max_context=128, max_slots=4, prefill_tokens=64, window=16, context_rows=16)


class AimedBuilder(rtx.Builder):
    """TensorRT-RTX's builder, told an architecture, because this machine may have none to look at."""

    def create_builder_config(self):
        config = super().create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(rtx.ComputeCapability.SM89, 0)
        return config


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """TensorRT 11.4 on a GPU of compute capability 8.9, as far as the build can tell."""
    tensorrt = ModuleType("tensorrt")
    vars(tensorrt).update({name: value for name, value in vars(rtx).items() if not name.startswith("__")})
    tensorrt.__version__, tensorrt.Builder = "11.4.0.106", AimedBuilder
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    device = SimpleNamespace(name="a fake", compute_capability="8.9", free_bytes=1 << 33)
    monkeypatch.setattr(tensorrt_engine, "find_device", lambda: device)
    return device


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_small_model(tmp_path_factory.mktemp("model"))


def test_a_built_folder_says_what_it_can_be_loaded_by(gpu, model: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, drafter = model
    folder = EngineFolder(tmp_path)
    target = build_tensorrt_target(checkpoint, drafter, "fp16", folder.target, SIZES)
    built = build_tensorrt_drafter(drafter, checkpoint, "fp16", folder.drafter, SIZES)
    assert {path.name for path in folder.target.iterdir()} == {"engine.json", "engine.plan"}
    assert {path.name for path in folder.drafter.iterdir()} == {"engine.json", "context.plan", "block.plan"}
    assert read_record(folder.target, TensorRtTargetRecord) == target
    assert read_record(folder.drafter, TensorRtDrafterRecord) == built
    assert (target.plan.tensorrt, target.plan.compute_capability) == ("11.4.0.106", "8.9")
    assert target.model.dtype == built.model.dtype == "float16"
    assert target.token_buckets == (1, 2, 4, 8)          # 4 drafts and the anchor take 5 of 8
    assert target.prefill_buckets == (16, 32, 64)
    assert target.capacity >= target.limits.max_context + target.limits.spare_tokens + 64
    # Built again only when something has changed: here the GPU.
    assert build_verb._built_from(folder, target.plan) == (target.facts, built.facts)
    assert build_verb._built_from(folder, dataclasses.replace(target.plan, compute_capability="9.0")) is None


def test_without_tensorrt_or_gpu_the_verb_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(ConfigurationError, match=r"tensorrt cannot be imported .* needs version 10\.15"):
        build_verb.build_engine("no such checkpoint", "tensorrt", None, False)
    monkeypatch.setattr(tensorrt_engine, "require_tensorrt", lambda: "11.4.0")
    with pytest.raises(ConfigurationError, match=r"CUDA sees none|cuda-python"):
        build_verb.build_engine("no such checkpoint", "tensorrt", None, False)


@pytest.mark.parametrize(
    ("version", "fits"), [("10.15.1", True), ("11.4.0", True), ("10.13.3.9", False), ("12.0", False)]
)
def test_a_version_is_right_or_refused(version: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__=version))
    if fits:
        assert tensorrt_checks.require_tensorrt() == version
    else:
        with pytest.raises(ConfigurationError, match=r"10\.15 to 11\.x"):
            tensorrt_checks.require_tensorrt()


@pytest.mark.parametrize("sizes", [{"max_slots": 6}, {"prefill_tokens": 32}, {"context_rows": 0}])
def test_sizes_that_make_no_buckets_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        TensorRtSizes(**sizes)


def test_narrowing_keeps_the_angles_of_far_positions_and_leaves_the_drafter_alone(model: tuple[Path, Path]) -> None:
    drafter = load_drafter_checkpoint(model[1], model[0])
    narrow = narrow_drafter(drafter, torch.float16)
    far = torch.tensor([4095, 2049])
    with torch.no_grad():
        for ours, theirs in zip(narrow.rotary(far), drafter.rotary(far), strict=True):
            torch.testing.assert_close(ours, theirs)
        rows = torch.randn(2, drafter.config.model.hidden_size)
        assert narrow.lm_head(rows.half()).dtype == torch.float32
    assert {parameter.dtype for parameter in drafter.parameters()} == {torch.float32}
