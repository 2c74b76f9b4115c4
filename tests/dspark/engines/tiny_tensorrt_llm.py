"""Tiny engines built and loaded with the fake TensorRT-LLM; in float32, to compare them with torch closely."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from dspark.engines.tensorrt_llm_drafter import TensorRtLlmDrafter
from dspark.engines.tensorrt_llm_target import TensorRtLlmTarget
from dspark_build.export import tensorrt_llm_build, tensorrt_llm_sizes
from dspark_build.export.tensorrt_llm_sizes import TensorRtLlmSizes
from fake_tensorrt_llm import FakeTensorRtLlm

SIZES = TensorRtLlmSizes(max_context=64, max_slots=4, kv_tokens=96, block_size=4, max_tokens=10)


def install(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRtLlm:
    """The fake, with float32 as a precision of engines, and attention for the heads of tiny models."""
    fake = FakeTensorRtLlm().install(monkeypatch)
    weights = importlib.import_module("dspark_build.export.tensorrt_llm_weights")
    monkeypatch.setattr(tensorrt_llm_sizes, "FUSED_HEAD_SIZES", (8, 16))
    monkeypatch.setitem(tensorrt_llm_sizes.DTYPES, "fp32", "float32")
    monkeypatch.setitem(weights.TORCH_DTYPES, "float32", torch.float32)
    return fake


def build_target(checkpoints: tuple[Path, Path], out: Path, sizes: TensorRtLlmSizes = SIZES) -> Path:
    target, drafter = checkpoints
    tensorrt_llm_build.build_tensorrt_llm_target(target, drafter, "fp32", out, sizes)
    return out


def build_drafter(checkpoints: tuple[Path, Path], out: Path, sizes: TensorRtLlmSizes = SIZES) -> Path:
    target, drafter = checkpoints
    tensorrt_llm_build.build_tensorrt_llm_drafter(drafter, target, "fp32", out, sizes)
    return out


def load_target(folder: Path) -> TensorRtLlmTarget:
    return TensorRtLlmTarget(folder)


def load_drafter(folder: Path) -> TensorRtLlmDrafter:
    return TensorRtLlmDrafter(folder)
