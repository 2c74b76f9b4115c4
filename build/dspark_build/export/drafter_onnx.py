"""A drafter's two graphs as ONNX files, for TensorRT and for any other runtime; the number of rows is free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from dspark.engines.drafter_names import BLOCK_INPUTS, BLOCK_OUTPUTS, CONTEXT_INPUTS, COUPLING_INPUTS, pool_names
from torch import nn
from torch.export import Dim

from dspark_build.export.drafter_graphs import BlockGraph, ContextGraph, CoupledBlockGraph
from dspark_build.models.drafter import Drafter

CONTEXT_ONNX = "context.onnx"
BLOCK_ONNX = "block.onnx"
OPSET = 18


def export_drafter_onnx(
    drafter: Drafter, window: int, max_slots: int, folder: Path, can_couple: bool = True
) -> None:
    """Write context.onnx and block.onnx; axes A (context rows) and R (requests) are dynamic, the rings' are fixed.

    can_couple: the block graph can draft by the target's noise. That takes bitwise operators, which TensorRT's ONNX
    parser does not list as supported: without, the graph has none and lacks COUPLING_INPUTS.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pools = pool_names(drafter.config.model.layers)
    context = ContextGraph(drafter).eval()
    rows = {0: Dim("A")}
    _export(context, context.example(), CONTEXT_INPUTS, pools, (rows, rows), folder / CONTEXT_ONNX)
    block = (CoupledBlockGraph if can_couple else BlockGraph)(drafter).eval()
    inputs = (*BLOCK_INPUTS, *COUPLING_INPUTS) if can_couple else BLOCK_INPUTS
    requests = {0: Dim("R")}
    _export(
        block,
        block.example(window, max_slots),
        (*inputs, *pools),
        BLOCK_OUTPUTS,
        (*[requests] * len(inputs), [None] * len(pools)),
        folder / BLOCK_ONNX,
    )


def _export(
    graph: nn.Module,
    example: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic_shapes: tuple[Any, ...],
    path: Path,
) -> None:
    with torch.no_grad():
        torch.onnx.export(
            graph,
            example,
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=dynamic_shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
