"""A drafter's two graphs as OpenVINO models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from dspark.engines.drafter_graphs import (
    BLOCK_GRAPH,
    BLOCK_INPUTS,
    BLOCK_OUTPUTS,
    CONTEXT_GRAPH,
    CONTEXT_INPUTS,
    COUPLING_INPUTS,
    pool_names,
)
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch import nn

from dspark_build.export.drafter_graphs import BlockGraph, ContextGraph, CoupledBlockGraph
from dspark_build.export.paged import compress
from dspark_build.export.row_exact import row_exact
from dspark_build.models.drafter import Drafter


def save_drafter_graphs(drafter: Drafter, window: int, max_slots: int, precision: str, folder: Path) -> None:
    """Write context.xml and block.xml with their weights; precision "fp32" | "int8" (weights)."""
    for name, model in (
        (CONTEXT_GRAPH, convert_context(drafter)),
        (BLOCK_GRAPH, convert_block(drafter, window, max_slots)),
    ):
        ov.save_model(compress(model, precision), folder / name, compress_to_fp16=False)


def convert_context(drafter: Drafter) -> ov.Model:
    """features [?, d], positions [?] -> K and V rows of every layer."""
    graph = ContextGraph(row_exact(drafter)).eval()
    model = _convert(graph, graph.example())
    size = drafter.config.model.hidden_size
    return _name(model, CONTEXT_INPUTS, pool_names(drafter.config.model.layers), [[-1, size], [-1]])


def convert_block(drafter: Drafter, window: int, max_slots: int, can_couple: bool = True) -> ov.Model:
    """The block inputs of R requests and the rings [max_slots, window, K, D] -> the drafted block."""
    config = drafter.config
    graph = (CoupledBlockGraph if can_couple else BlockGraph)(row_exact(drafter)).eval()
    model = _convert(graph, graph.example(window, max_slots))
    names = pool_names(config.model.layers)
    ring = [max_slots, window, config.model.kv_heads, config.model.head_size]
    block = [-1, config.block_size]
    noise = dict(zip(COUPLING_INPUTS, (block, [-1]), strict=True)) if can_couple else {}
    shapes = [*[[-1]] * (len(BLOCK_INPUTS) - 1), block, *noise.values(), *[ring] * len(names)]
    return _name(model, (*BLOCK_INPUTS, *noise, *names), BLOCK_OUTPUTS, shapes)


def _convert(graph: nn.Module, example: tuple[Any, ...]) -> ov.Model:
    # Tracing a second time to compare would double the time; the tests compare the engine with the definition.
    with torch.no_grad():
        traced = TorchScriptPythonDecoder(graph, example_input=example, trace_kwargs={"check_trace": False})
        return ov.convert_model(traced)


def _name(
    model: ov.Model, inputs: Sequence[str], outputs: Sequence[str], shapes: Sequence[Sequence[int]]
) -> ov.Model:
    """Give inputs and outputs their names, and the inputs the axes that are fixed."""
    for port, name, shape in zip(model.inputs, inputs, shapes, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(ov.PartialShape(list(shape)))
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()
    return model
