"""Building TensorRT-LLM engines: checkpoints in; folders with engine.plan and engine.json out.

TensorRT-LLM is imported inside, after its version has been checked. Never run on a GPU: see docs/gpu.md.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dspark.engines.cuda_runtime import find_device
from dspark.engines.engine_json import BuildFacts, write_record
from dspark.engines.tensorrt_llm_record import (
    ENGINE_PLAN,
    LlmPlanFacts,
    TensorRtLlmDrafterRecord,
    TensorRtLlmTargetRecord,
)
from dspark.engines.tensorrt_llm_version import require_tensorrt_llm

from dspark_build.checkpoints.form import checkpoint_hash, new_folder
from dspark_build.drafters import load_drafter_checkpoint, load_feature_head, read_drafter_config
from dspark_build.export.tensorrt_llm_sizes import (
    TensorRtLlmSizes,
    drafter_limits,
    drafter_shape,
    dtype_of,
    target_limits,
    target_shape,
)
from dspark_build.machine import cpu_model
from dspark_build.models.config import ModelConfig
from dspark_build.models.drafter import Drafter
from dspark_build.models.target import Target

TOOLS = ("tensorrt_llm", "torch", "numpy")


def build_tensorrt_llm_target(
    checkpoint: Path, drafter: Path, precision: str, out: Path, sizes: TensorRtLlmSizes | None = None
) -> TensorRtLlmTargetRecord:
    """Compile a checkpoint and a drafter's feature head into the folder `out`, which is replaced as a whole.

    precision: "fp16" | "bf16". Raises ConfigurationError when TensorRT-LLM or a GPU is missing, when its attention may
    not take the model's heads, and when checkpoint, drafter and sizes do not fit together.
    """
    plan, sizes = llm_plan_facts(), sizes or TensorRtLlmSizes()
    from dspark_build.export.tensorrt_llm_describe import build_engine, define_target
    from dspark_build.export.tensorrt_llm_networks import TargetNetwork
    from dspark_build.export.tensorrt_llm_weights import assign, target_weights

    config = read_drafter_config(drafter, checkpoint)
    target, features = Target.load(checkpoint), load_feature_head(drafter, config)
    limits = target_limits(target.config, config.block_size, sizes)
    record = TensorRtLlmTargetRecord(
        limits=limits,
        shape=target_shape(target.config, limits, dtype_of(precision), sizes),
        tap_ids=features.tap_ids,
        plan=plan,
        facts=llm_build_facts(checkpoint, drafter, precision),
    )
    network = TargetNetwork(target.config, record.shape, record.tap_ids)
    assign(network, target_weights(target.state_dict(), features.state_dict()), record.shape.dtype)
    with new_folder(out) as folder:
        engine = build_engine(network, define_target(network), record.shape, record.inputs, record.outputs)
        (folder / ENGINE_PLAN).write_bytes(engine)
        write_record(folder, record)
    return record


def build_tensorrt_llm_drafter(
    drafter: Path, checkpoint: Path, precision: str, out: Path, sizes: TensorRtLlmSizes | None = None
) -> TensorRtLlmDrafterRecord:
    """Compile a drafter into the folder `out`, as `build_tensorrt_llm_target` does a target."""
    plan, sizes = llm_plan_facts(), sizes or TensorRtLlmSizes()
    from dspark_build.export.tensorrt_llm_describe import build_engine, define_drafter
    from dspark_build.export.tensorrt_llm_networks import DrafterNetwork
    from dspark_build.export.tensorrt_llm_weights import assign, drafter_weights

    model = load_drafter_checkpoint(drafter, checkpoint)
    context = min(sizes.max_context, ModelConfig.read(checkpoint).max_positions)
    limits = drafter_limits(model.config, context, sizes)
    record = TensorRtLlmDrafterRecord(
        limits=limits,
        shape=drafter_shape(model.config.model, limits, dtype_of(precision), sizes),
        markov_head_type=model.config.markov_head_type,
        mask_token_id=model.config.mask_token_id,
        plan=plan,
        facts=llm_build_facts(checkpoint, drafter, precision),
    )
    network = DrafterNetwork(model.config, record.shape, limits.candidates, target_ids(model))
    assign(network, drafter_weights(model.state_dict()), record.shape.dtype)
    with new_folder(out) as folder:
        engine = build_engine(network, define_drafter(network), record.shape, record.inputs, record.outputs)
        (folder / ENGINE_PLAN).write_bytes(engine)
        write_record(folder, record)
    return record


def llm_plan_facts() -> LlmPlanFacts:
    """What engines built here and now are tied to. Raises ConfigurationError without TensorRT-LLM or without a GPU."""
    installed, device = require_tensorrt_llm(), find_device()
    return LlmPlanFacts(installed, device.compute_capability, device.name)


def target_ids(model: Drafter) -> npt.NDArray[np.int64] | None:
    """The tokens [Vd] that columns of the drafter's logits stand for; None where they are the same."""
    if model.d2t is None:
        return None
    ids: npt.NDArray[np.int64] = model.draft_vocabulary().numpy()
    return ids


def llm_build_facts(checkpoint: Path, drafter: Path, precision: str) -> BuildFacts:
    """What engines built here and now come from, with the tools of this route."""
    return BuildFacts(
        checkpoint=checkpoint.name,
        checkpoint_hash=checkpoint_hash(checkpoint),
        drafter_hash=checkpoint_hash(drafter),
        precision=precision,
        tools={tool: metadata.version(tool) for tool in TOOLS},
        cpu=cpu_model(),
    )
