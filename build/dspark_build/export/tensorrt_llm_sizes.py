"""What TensorRT-LLM engines are built for: sizes, limits, and the shape of the KV pool that follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.tensorrt_llm_tensors import PagedShape
from dspark.errors import ConfigurationError

from dspark_build.models.block_sampling import CANDIDATES
from dspark_build.models.config import ModelConfig
from dspark_build.models.drafter_config import DrafterConfig

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
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


def drafter_limits(config: DrafterConfig, context: int, sizes: TensorRtLlmSizes) -> DrafterLimits:
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
