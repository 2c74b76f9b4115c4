"""Building TensorRT-LLM engines: checkpoints in; folders with engine.plan and engine.json out.

TensorRT-LLM is imported inside, after its version has been checked. Never run on a GPU: see docs/gpu.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.cuda_runtime import find_device
from dspark.engines.engine_json import BuildFacts, write_record
from dspark.engines.tensorrt_llm_record import (
    ENGINE_PLAN,
    LlmPlanFacts,
    TensorRtLlmDrafterRecord,
    TensorRtLlmTargetRecord,
)
from dspark.engines.tensorrt_llm_tensors import PagedShape
from dspark.engines.tensorrt_llm_version import require_tensorrt_llm
from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import checkpoint_hash, new_folder
from dspark_build.drafters import load_drafter_checkpoint, load_feature_head, read_drafter_config
from dspark_build.machine import cpu_model
from dspark_build.models.block_sampling import CANDIDATES
from dspark_build.models.config import ModelConfig
from dspark_build.models.drafter import Drafter
from dspark_build.models.target import Target

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
TOOLS = ("tensorrt_llm", "torch", "numpy")
# Without a fused kernel the plugin falls back to one that ignores the past in the pool, and says so in its log only.
FUSED_HEAD_SIZES = (64, 128)         # of the models this route was written for; others are not known to have one


@dataclass(frozen=True)
class TensorRtLlmSizes:
    """What the engines are built for. The target's pool takes 4 · layers · kv_heads · head_size bytes a token."""

    max_context: int = 4096          # tokens of one sequence; cut to what the model was trained for
    max_slots: int = 32
    kv_tokens: int = 65536           # of all sequences together, in the target's pool
    block_size: int = 64             # tokens of a KV block; the fused kernels want a power of two
    max_tokens: int = 2048           # of one run; a larger step takes several

    def __post_init__(self) -> None:
        if min(self.max_context, self.max_slots, self.max_tokens) < 1 or self.kv_tokens < self.block_size:
            raise ConfigurationError(
                f"{self}: context, slots and tokens must be at least 1, KV tokens at least one block"
            )


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
    limits = drafter_limits(model, context, sizes)
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


def dtype_of(precision: str) -> str:
    """The type of weights and KV. Raises ConfigurationError for what the fused attention does not take."""
    if precision not in DTYPES:
        raise ConfigurationError(f"precision is {precision!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[precision]


def target_limits(config: ModelConfig, block_size: int, sizes: TensorRtLlmSizes) -> TargetLimits:
    return TargetLimits(
        vocabulary_size=config.vocabulary_size,
        hidden_size=config.hidden_size,
        max_context=min(sizes.max_context, config.max_positions),
        max_slots=sizes.max_slots,
        kv_block_size=sizes.block_size,
        kv_blocks=sizes.kv_tokens // sizes.block_size,
        max_draft_tokens=block_size,
        spare_tokens=block_size,
    )


def target_shape(config: ModelConfig, limits: TargetLimits, dtype: str, sizes: TensorRtLlmSizes) -> PagedShape:
    logit_rows = min(sizes.max_tokens, limits.max_slots * (limits.max_draft_tokens + 1))
    return _shape(config, dtype, sizes, limits.kv_blocks, limits.max_context + limits.spare_tokens, logit_rows)


def drafter_limits(model: Drafter, context: int, sizes: TensorRtLlmSizes) -> DrafterLimits:
    config = model.config
    return DrafterLimits(
        vocabulary_size=config.model.vocabulary_size,
        feature_size=config.model.hidden_size,
        block_size=config.block_size,
        candidates=min(CANDIDATES, config.draft_vocabulary_size),
        max_slots=sizes.max_slots,
        window=context,              # a block sees the whole context
        has_confidence=config.confidence_head,
        can_couple=False,            # TensorRT has no bitwise operators
    )


def drafter_shape(config: ModelConfig, limits: DrafterLimits, dtype: str, sizes: TensorRtLlmSizes) -> PagedShape:
    """Every slot owns the blocks of a whole sequence and one drafted block."""
    capacity = limits.window + limits.block_size
    return _shape(config, dtype, sizes, limits.max_slots * -(-capacity // sizes.block_size), capacity, 0)


def target_ids(model: Drafter) -> npt.NDArray[np.int64] | None:
    """The tokens [Vd] that columns of the drafter's logits stand for; None where they are the same."""
    if model.d2t is None:
        return None
    ids: npt.NDArray[np.int64] = model.draft_vocabulary().numpy()
    return ids


def _shape(
    config: ModelConfig, dtype: str, sizes: TensorRtLlmSizes, blocks: int, capacity: int, logit_rows: int
) -> PagedShape:
    if config.head_size not in FUSED_HEAD_SIZES:
        sizes_known = " and ".join(map(str, FUSED_HEAD_SIZES))
        raise ConfigurationError(
            f"heads of {config.head_size} are not known to have a fused attention kernel in TensorRT-LLM, only "
            f"{sizes_known}; without one an engine would be wrong: build --engine tensorrt"
        )
    return PagedShape(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        dtype=dtype,
        block_size=sizes.block_size,
        blocks=blocks,
        capacity=capacity,
        max_tokens=sizes.max_tokens,
        max_sequences=sizes.max_slots,
        max_logit_rows=logit_rows,
    )


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
