"""Tiny TensorRT engine folders whose plans the fake GPU runs by ONNX Runtime."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from dspark.engines.engine_json import write_record
from dspark.engines.tensorrt_record import BLOCK_PLAN, CONTEXT_PLAN, TARGET_PLAN, PlanFacts
from dspark_build.export.facts import build_facts
from dspark_build.export.tensorrt_engine import drafter_record, target_record
from dspark_build.export.tensorrt_export import export_drafter_graphs, export_target_graph
from dspark_build.export.tensorrt_sizes import TensorRtSizes
from fake_gpu import write_plan
from tiny_targets import CONTEXT, checkpoints

SIZES = TensorRtSizes(max_context=CONTEXT, max_slots=8, prefill_tokens=64, window=12, context_rows=8)
FACTS = PlanFacts("11.4.0.106", "8.9", "a fake")
_folder = tempfile.TemporaryDirectory(prefix="tiny-tensorrt-")


@functools.cache
def target_folder(precision: str = "fp32") -> Path:
    checkpoint, drafter = checkpoints("qwen3")
    folder = Path(tempfile.mkdtemp(dir=_folder.name))
    exported = export_target_graph(checkpoint, drafter, precision, folder / "onnx", SIZES)
    write_record(folder, target_record(exported, FACTS, build_facts(checkpoint, drafter, precision)))
    write_plan(folder / TARGET_PLAN, exported.graph.path, exported.graph.profiles)
    return folder


@functools.cache
def drafter_folder(precision: str = "fp32") -> Path:
    checkpoint, drafter = checkpoints("qwen3")
    folder = Path(tempfile.mkdtemp(dir=_folder.name))
    exported = export_drafter_graphs(drafter, checkpoint, precision, folder / "onnx", SIZES)
    write_record(folder, drafter_record(exported, SIZES, FACTS, build_facts(checkpoint, drafter, precision)))
    write_plan(folder / CONTEXT_PLAN, exported.context.path, exported.context.profiles)
    write_plan(folder / BLOCK_PLAN, exported.block.path, exported.block.profiles)
    return folder
