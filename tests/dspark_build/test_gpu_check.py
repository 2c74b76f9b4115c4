"""The check of the GPU graphs passes for the graphs that are built, and for no other."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from dspark.errors import ConfigurationError
from dspark_build.export.tensorrt_export import Graph, TargetGraph, export_drafter_graphs, export_target_graph
from dspark_build.export.tensorrt_sizes import TensorRtSizes
from dspark_build.gpu_check import CAPABILITIES, BuiltPlan, check_graph, make_small_model

rtx = pytest.importorskip("tensorrt_rtx")

SIZES = TensorRtSizes(max_context=128, max_slots=4, prefill_tokens=64, window=16, context_rows=16)
Mutation = Callable[[onnx.GraphProto], None]


@pytest.fixture(autouse=True)
def tensorrt_is_tensorrt_rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", rtx)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def target(model: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> TargetGraph:
    return export_target_graph(*model, "fp16", tmp_path_factory.mktemp("target"), SIZES)


def checked(graph: Graph, capabilities: tuple[str, ...] = ()) -> list[BuiltPlan]:
    return list(check_graph("graph", graph, capabilities))


def mutated(graph: Graph, mutate: Mutation, name: str) -> Graph:
    """The graph with a change; weights stay in the file beside it."""
    proto = onnx.load(graph.path, load_external_data=False)
    mutate(proto.graph)
    path = graph.path.with_name(f"{name}.onnx")
    onnx.save(proto, path)
    return dataclasses.replace(graph, path=path)


def attentions(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "Attention"]


def without_mask(count: int) -> Mutation:
    """Every query of the first `count` layers may look everywhere."""

    def mutate(graph: onnx.GraphProto) -> None:
        for node in attentions(graph)[:count]:
            del node.input[3:]

    return mutate


def with_length_instead_of_mask(graph: onnx.GraphProto) -> None:
    """Attention told how many keys count by nonpad_kv_seqlen, which the parser accepts and drops."""
    for node in attentions(graph):
        del node.input[3:]
        node.input.extend(["", "", "", "write_at"])


def with_another_name(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.input[:] = ["asked_rows" if name == "logit_rows" else name for name in node.input]
    next(value for value in graph.input if value.name == "logit_rows").name = "asked_rows"


def with_an_unknown_operator(graph: onnx.GraphProto) -> None:
    next(node for node in graph.node if node.op_type == "Sigmoid").op_type = "Det"


def with_positions_from_nowhere(graph: onnx.GraphProto) -> None:
    """Positions are counted from 0 in every run: a shape of tokens is all that is looked at."""
    graph.node.insert(0, onnx.helper.make_node("Shape", ["positions"], ["their_shape"]))
    graph.node.insert(1, onnx.helper.make_node("ConstantOfShape", ["their_shape"], ["zeros"]))
    for node in list(graph.node)[2:]:
        node.input[:] = ["zeros" if name == "positions" else name for name in node.input]
    integer = onnx.helper.make_tensor("value", onnx.TensorProto.INT64, [1], [0])
    graph.node[1].attribute.append(onnx.helper.make_attribute("value", integer))


def with_caches_crossed(graph: onnx.GraphProto) -> None:
    """Keys and values of the first layer change places: names, types, shapes and nearly every dependence remain."""
    writers = [node for node in graph.node if node.op_type == "TensorScatter"][:2]
    writers[0].input[0], writers[1].input[0] = writers[1].input[0], writers[0].input[0]


def test_the_target_is_built_for_every_architecture(target: TargetGraph) -> None:
    plans = checked(target.graph, CAPABILITIES)
    assert [plan.capability for plan in plans] == list(CAPABILITIES)
    assert min(plan.mebibytes for plan in plans) > 1


def test_the_drafter_is_built(model: tuple[Path, Path], tmp_path: Path) -> None:
    graphs = export_drafter_graphs(model[1], model[0], "fp16", tmp_path, SIZES)
    assert checked(graphs.context, ("SM89",))
    assert checked(graphs.block, ("SM89",))


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        (without_mask(2), "input mask has no consumer"),
        (without_mask(1), "the mask of .* comes from nothing, expected mask"),
        (with_length_instead_of_mask, "input mask has no consumer"),
        (with_another_name, "input logit_rows is missing; input asked_rows is not in the contract"),
        (with_an_unknown_operator, "cannot parse .*Det"),
        (with_positions_from_nowhere, "input positions has no consumer"),
        (with_caches_crossed, r"output new_key\.0 is not past_key\.0 updated in place"),
    ],
)
def test_a_graph_that_was_not_meant_is_refused(mutate: Mutation, complaint: str, target: TargetGraph) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        checked(mutated(target.graph, mutate, "mutated"))


def test_a_graph_of_another_type_is_refused(target: TargetGraph) -> None:
    narrow = dataclasses.replace(target.graph.contract.outputs[0], dtype="float16")
    contract = dataclasses.replace(target.graph.contract, outputs=(narrow, *target.graph.contract.outputs[1:]))
    with pytest.raises(ConfigurationError, match=r"output logits is .'float32'.*expected .'float16'"):
        checked(dataclasses.replace(target.graph, contract=contract))


def test_an_architecture_that_is_unknown_is_refused(target: TargetGraph) -> None:
    with pytest.raises(ConfigurationError, match="does not build for SM42"):
        checked(target.graph, ("SM42",))
