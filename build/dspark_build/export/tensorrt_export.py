"""All three graphs of a target and its drafter as ONNX files, each with its contract and the ranges of its axes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.tensorrt_contract import (
    GraphContract,
    ModelShape,
    block_contract,
    context_contract,
    target_contract,
)
from dspark.errors import ConfigurationError

from dspark_build.drafters import load_drafter_checkpoint, load_feature_head, read_drafter_config
from dspark_build.export.tensorrt_graphs import BLOCK_ONNX, CONTEXT_ONNX, export_drafter, export_target
from dspark_build.export.tensorrt_plan import AxisRange, Profile
from dspark_build.export.tensorrt_sizes import (
    Buckets,
    TensorRtSizes,
    buckets,
    cache_capacity,
    drafter_limits,
    model_shape,
    target_limits,
    target_profiles,
)
from dspark_build.models.target import Target

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DTYPE_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True)
class Graph:
    """An ONNX file and what TensorRT has to make of it."""

    path: Path
    contract: GraphContract
    profiles: tuple[Profile, ...]


@dataclass(frozen=True)
class TargetGraph:
    graph: Graph
    limits: TargetLimits
    model: ModelShape
    capacity: int
    tap_ids: tuple[int, ...]
    buckets: Buckets


@dataclass(frozen=True)
class DrafterGraphFiles:
    context: Graph
    block: Graph
    limits: DrafterLimits
    model: ModelShape
    markov_head_type: str


def export_target_graph(
    checkpoint: Path, drafter: Path, precision: str, folder: Path, sizes: TensorRtSizes
) -> TargetGraph:
    """Write target.onnx. precision: "fp16" | "bf16" ("fp32" for ONNX Runtime). Raises ConfigurationError."""
    dtype = _dtype(precision)
    config = read_drafter_config(drafter, checkpoint)
    target, features = Target.load(checkpoint), load_feature_head(drafter, config)
    limits = target_limits(target.config, config.block_size, sizes)
    of = buckets(limits.max_draft_tokens, sizes)
    capacity = cache_capacity(limits, of)
    model = model_shape(target.config, DTYPE_NAMES[precision])
    contract = target_contract(limits, model, capacity, features.tap_ids)
    path = export_target(target, features, capacity, dtype, folder)
    return TargetGraph(
        Graph(path, contract, target_profiles(of)), limits, model, capacity, features.tap_ids, of
    )


def export_drafter_graphs(
    drafter: Path, checkpoint: Path, precision: str, folder: Path, sizes: TensorRtSizes
) -> DrafterGraphFiles:
    """Write context.onnx and block.onnx. Raises ConfigurationError."""
    dtype = _dtype(precision)
    model = load_drafter_checkpoint(drafter, checkpoint)
    limits = drafter_limits(model.config, sizes)
    shape = model_shape(model.config.model, DTYPE_NAMES[precision])
    export_drafter(model, sizes.window, sizes.max_slots, dtype, folder)
    rows = AxisRange(1, sizes.max_slots, sizes.max_slots)
    context_rows = AxisRange(1, min(64, sizes.context_rows), sizes.context_rows)
    return DrafterGraphFiles(
        Graph(folder / CONTEXT_ONNX, context_contract(limits, shape), ({"A": context_rows},)),
        Graph(folder / BLOCK_ONNX, block_contract(limits, shape), ({"R": rows},)),
        limits,
        shape,
        model.config.markov_head_type,
    )


def _dtype(precision: str) -> torch.dtype:
    if precision not in DTYPES:
        raise ConfigurationError(f"precision is {precision!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[precision]
