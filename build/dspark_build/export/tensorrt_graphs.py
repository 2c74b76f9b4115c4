"""ONNX files for TensorRT, from the same torch definitions as every other engine; dspark.engines.tensorrt_contract.

The target's attention is ONNX `Attention` under an explicit boolean mask, its caches are written by `TensorScatter`:
TensorRT's parser makes attention and cache-update layers of them, and ONNX Runtime runs them on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from dspark.engines.drafter_names import BLOCK_INPUTS, BLOCK_OUTPUTS, CONTEXT_INPUTS, pool_names
from dspark.engines.tensorrt_contract import NEW, PAST, cache_names
from torch import Tensor, nn
from torch.export import Dim

from dspark_build.export.drafter_graphs import BlockGraph, ContextGraph
from dspark_build.export.half import narrow_drafter, narrow_target
from dspark_build.models.drafter import Drafter
from dspark_build.models.feature_head import FeatureHead
from dspark_build.models.layers import Attend, masked_attention
from dspark_build.models.target import DenseOutput, Target

TARGET_ONNX, CONTEXT_ONNX, BLOCK_ONNX = "target.onnx", "context.onnx", "block.onnx"
OPSET = 24                           # the first with TensorScatter


class InPlaceKvTarget(nn.Module):
    """Target and feature head over caches [R, K, C, D], which take a row's L new tokens at `write_at` [R]."""

    def __init__(self, target: Target, features: FeatureHead) -> None:
        super().__init__()
        self.target = target
        self.features = features

    def forward(
        self, tokens: Tensor, positions: Tensor, logit_rows: Tensor, mask: Tensor, write_at: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        caches: list[Tensor] = []

        def attend_in(layer: int) -> Attend:
            def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                updated = [
                    _write(cache, fresh.transpose(1, 2), write_at)
                    for cache, fresh in zip(past[2 * layer : 2 * layer + 2], (keys, values), strict=True)
                ]
                caches.extend(updated)
                return masked_attention(queries, *(cache.transpose(1, 2) for cache in updated), mask)

            return attend

        x = self.target.embed_tokens(tokens)
        outputs = self.target.run_layers(x, positions, [attend_in(layer) for layer in range(len(self.target.layers))])
        hidden = self.target.norm(outputs[-1])
        asked = hidden.gather(1, logit_rows[..., None].expand(-1, -1, hidden.shape[-1]))
        features = self.features(DenseOutput(hidden, outputs, x).tapped(self.features.tap_ids))
        return self.target.lm_head(asked), features.float(), *caches


class NarrowContextGraph(ContextGraph):
    """ContextGraph of a drafter in half precision; features come in float32."""

    def forward(self, features: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        return super().forward(features.to(self.drafter.fc.weight.dtype), positions)


class NarrowBlockGraph(BlockGraph):
    """BlockGraph of a drafter in half precision, whose rings are as narrow as its weights."""

    def example(self, window: int, max_slots: int) -> tuple[Any, ...]:
        *inputs, pools = super().example(window, max_slots)
        return *inputs, [pool.to(self.drafter.fc.weight.dtype) for pool in pools]


def export_target(
    target: Target, features: FeatureHead, capacity: int, precision: torch.dtype, folder: Path
) -> Path:
    """Write `folder/target.onnx` (weights beside it) for caches of `capacity` tokens; `target` is narrowed for it."""
    config = target.config
    rows, tokens, asked = 2, 3, 2
    names = cache_names(config.layers)
    cache = (rows, config.kv_heads, capacity, config.head_size)
    example = (
        torch.zeros(rows, tokens, dtype=torch.int64),
        torch.zeros(rows, tokens, dtype=torch.int64),
        torch.zeros(rows, asked, dtype=torch.int64),
        torch.ones(rows, 1, tokens, capacity, dtype=torch.bool),
        torch.zeros(rows, dtype=torch.int64),
        [torch.zeros(cache, dtype=precision) for _ in names],
    )
    free = Dim.DYNAMIC
    two = {0: free, 1: free}
    return _export(
        InPlaceKvTarget(narrow_target(target, precision), features.to(precision)),
        example,
        ["tokens", "positions", "logit_rows", "mask", "write_at", *(PAST + name for name in names)],
        ["logits", "features", *(NEW + name for name in names)],
        (two, two, two, {0: free, 2: free}, {0: free}, [{0: free}] * len(names)),
        folder / TARGET_ONNX,
    )


def export_drafter(drafter: Drafter, window: int, max_slots: int, precision: torch.dtype, folder: Path) -> None:
    """Write `folder/context.onnx` and `folder/block.onnx`.

    The block draws by uniforms only: drafting by the target's noise takes unsigned integers, which TensorRT lacks.
    """
    narrow = narrow_drafter(drafter, precision)
    pools = pool_names(drafter.config.model.layers)
    rows, requests = {0: Dim("A")}, {0: Dim("R")}
    context = NarrowContextGraph(narrow)
    _export(context, context.example(), CONTEXT_INPUTS, pools, (rows, rows), folder / CONTEXT_ONNX)
    block = NarrowBlockGraph(narrow)
    shapes = (*[requests] * len(BLOCK_INPUTS), [None] * len(pools))
    inputs = (*BLOCK_INPUTS, *pools)
    _export(block, block.example(window, max_slots), inputs, BLOCK_OUTPUTS, shapes, folder / BLOCK_ONNX)


def _write(cache: Tensor, fresh: Tensor, write_at: Tensor) -> Tensor:
    """The cache [R, K, C, D] with `fresh` [R, K, L, D] from `write_at` [R] on; an ONNX node that torch only traces."""
    written: Tensor = torch.onnx.ops.symbolic(
        "TensorScatter",
        (cache, fresh, write_at),
        {"axis": 2, "mode": "linear"},
        dtype=cache.dtype,
        shape=cache.shape,
        version=OPSET,
    )
    return written


def _export(
    graph: nn.Module,
    example: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic_shapes: tuple[Any, ...],
    path: Path,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        torch.onnx.export(
            graph.eval(),
            example,
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=dynamic_shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    return path
