"""Building TensorRT engines: checkpoints in; folders with plans and engine.json out. It needs the GPU they are for."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from dspark.engines.cuda_runtime import find_device
from dspark.engines.engine_json import BuildFacts, write_record
from dspark.engines.tensorrt_checks import require_tensorrt
from dspark.engines.tensorrt_record import (
    BLOCK_PLAN,
    CONTEXT_PLAN,
    TARGET_PLAN,
    PlanFacts,
    TensorRtDrafterRecord,
    TensorRtTargetRecord,
)
from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import new_folder
from dspark_build.export.facts import build_facts
from dspark_build.export.tensorrt_check import network_faults
from dspark_build.export.tensorrt_export import (
    DrafterGraphFiles,
    Graph,
    TargetGraph,
    export_drafter_graphs,
    export_target_graph,
)
from dspark_build.export.tensorrt_plan import build_plan, parse_onnx
from dspark_build.export.tensorrt_sizes import TensorRtSizes, buckets


def plan_facts() -> PlanFacts:
    """What plans built here and now are tied to. Raises ConfigurationError without TensorRT or without a GPU."""
    version, device = require_tensorrt(), find_device()
    return PlanFacts(version, device.compute_capability, device.name)


def build_tensorrt_target(
    checkpoint: Path, drafter: Path, precision: str, out: Path, sizes: TensorRtSizes | None = None
) -> TensorRtTargetRecord:
    """Compile a checkpoint and a drafter's feature head into the folder `out`, which is replaced as a whole.

    precision: "fp16" | "bf16". Raises ConfigurationError when TensorRT or a GPU is missing, when the inputs do not fit
    together, and when the network that TensorRT parsed is not the one that was exported.
    """
    facts = plan_facts()
    with new_folder(out) as folder, TemporaryDirectory(dir=out.parent, prefix="onnx-") as onnx:
        exported = export_target_graph(checkpoint, drafter, precision, Path(onnx), sizes or TensorRtSizes())
        record = target_record(exported, facts, build_facts(checkpoint, drafter, precision))
        (folder / TARGET_PLAN).write_bytes(_checked_plan(exported.graph))
        write_record(folder, record)
    return record


def build_tensorrt_drafter(
    drafter: Path, checkpoint: Path, precision: str, out: Path, sizes: TensorRtSizes | None = None
) -> TensorRtDrafterRecord:
    """Compile a drafter into the folder `out`, as `build_tensorrt_target` does a target."""
    facts, sizes = plan_facts(), sizes or TensorRtSizes()
    with new_folder(out) as folder, TemporaryDirectory(dir=out.parent, prefix="onnx-") as onnx:
        exported = export_drafter_graphs(drafter, checkpoint, precision, Path(onnx), sizes)
        record = drafter_record(exported, sizes, facts, build_facts(checkpoint, drafter, precision))
        (folder / CONTEXT_PLAN).write_bytes(_checked_plan(exported.context))
        (folder / BLOCK_PLAN).write_bytes(_checked_plan(exported.block))
        write_record(folder, record)
    return record


def target_record(exported: TargetGraph, plan: PlanFacts, facts: BuildFacts) -> TensorRtTargetRecord:
    of = exported.buckets
    return TensorRtTargetRecord(
        limits=exported.limits,
        model=exported.model,
        capacity=exported.capacity,
        tap_ids=exported.tap_ids,
        row_buckets=of.rows,
        token_buckets=of.tokens,
        prefill_buckets=of.prefill,
        plan=plan,
        facts=facts,
    )


def drafter_record(
    exported: DrafterGraphFiles, sizes: TensorRtSizes, plan: PlanFacts, facts: BuildFacts
) -> TensorRtDrafterRecord:
    of = buckets(exported.limits.block_size, sizes)
    return TensorRtDrafterRecord(
        limits=exported.limits,
        model=exported.model,
        markov_head_type=exported.markov_head_type,
        request_buckets=of.rows,
        context_buckets=of.context_rows,
        plan=plan,
        facts=facts,
    )


def _checked_plan(graph: Graph) -> bytes:
    parsed = parse_onnx(graph.path)
    faults = network_faults(parsed.network, graph.contract)
    if faults:
        raise ConfigurationError(f"TensorRT made another network of {graph.path.name}: {'; '.join(faults)}")
    return build_plan(parsed, graph.contract, graph.profiles)
