"""What a TensorRT engine is built for, and the ranges of its axes that follow from that."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.tensorrt_contract import ModelShape
from dspark.engines.tensorrt_record import power_buckets
from dspark.errors import ConfigurationError

from dspark_build.export.tensorrt_plan import AxisRange, Profile
from dspark_build.models.block_sampling import CANDIDATES
from dspark_build.models.config import ModelConfig
from dspark_build.models.drafter_config import DrafterConfig

LEAST_PREFILL = 64                   # TensorRT-RTX 1.7 fails to build a profile of one row of up to 32 tokens
CAPACITY_STEP = 64                   # tokens; every slot's cache starts at an aligned address


@dataclass(frozen=True)
class TensorRtSizes:
    """A cache takes 4 · layers · kv_heads · head_size bytes a token (16 bits) and is there from the start."""

    max_context: int = 4096          # tokens of one sequence; cut to what the model was trained for
    max_slots: int = 32              # a power of two
    max_draft_tokens: int = 0        # of one request in one step; 0: the drafter's block size
    prefill_tokens: int = 256        # longest row of one run, a power of two from 64 on; longer ones take several
    window: int = 256                # W, context rows a drafted block attends to
    context_rows: int = 512          # feature rows of one run of the drafter's context graph, a power of two

    def __post_init__(self) -> None:
        powers = (self.max_slots, self.prefill_tokens, self.context_rows)
        if min(self.max_context, self.window, *powers) < 1 or any(size & (size - 1) for size in powers):
            raise ConfigurationError(f"{self}: sizes must be at least 1; slots, prefill and context rows powers of two")
        if self.prefill_tokens < LEAST_PREFILL:
            raise ConfigurationError(f"prefill_tokens is {self.prefill_tokens}; it must be at least {LEAST_PREFILL}")


@dataclass(frozen=True)
class Buckets:
    """Every padded length that the runtime uses."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    prefill: tuple[int, ...]
    context_rows: tuple[int, ...]


def buckets(drafts: int, sizes: TensorRtSizes) -> Buckets:
    """drafts: of one request in one step."""
    tokens = power_buckets(1, drafts + 1)
    return Buckets(
        rows=power_buckets(1, sizes.max_slots),
        tokens=tokens,
        prefill=power_buckets(min(2 * tokens[-1], sizes.prefill_tokens), sizes.prefill_tokens),
        context_rows=power_buckets(1, sizes.context_rows),
    )


def target_profiles(of: Buckets) -> tuple[Profile, Profile]:
    """Verification (VERIFY_PROFILE), where a row is a slot, and prefill (PREFILL_PROFILE) of one row."""
    rows, tokens, prefill = (AxisRange(1, lengths[-1], lengths[-1]) for lengths in (of.rows, of.tokens, of.prefill))
    one = AxisRange(1, 1, 1)
    return {"R": rows, "L": tokens, "N": tokens}, {"R": one, "L": prefill, "N": AxisRange(1, 1, tokens.most)}


def target_limits(config: ModelConfig, block_size: int, sizes: TensorRtSizes) -> TargetLimits:
    """A slot's cache is one block, so that what admission reserves is what there is."""
    drafts = sizes.max_draft_tokens or block_size
    context = min(sizes.max_context, config.max_positions)
    return TargetLimits(
        vocabulary_size=config.vocabulary_size,
        hidden_size=config.hidden_size,
        max_context=context,
        max_slots=sizes.max_slots,
        kv_block_size=context + drafts,
        kv_blocks=sizes.max_slots,
        max_draft_tokens=drafts,
        spare_tokens=drafts,
    )


def cache_capacity(limits: TargetLimits, of: Buckets) -> int:
    """Tokens of a slot's cache: a row that is padded to a bucket may write beyond what counts."""
    tokens = limits.max_context + limits.spare_tokens + max(of.prefill[-1], of.tokens[-1])
    return -(-tokens // CAPACITY_STEP) * CAPACITY_STEP


def drafter_limits(config: DrafterConfig, sizes: TensorRtSizes) -> DrafterLimits:
    return DrafterLimits(
        vocabulary_size=config.model.vocabulary_size,
        feature_size=config.model.hidden_size,
        block_size=config.block_size,
        candidates=min(CANDIDATES, config.draft_vocabulary_size),
        max_slots=sizes.max_slots,
        window=sizes.window,
        has_confidence=config.confidence_head,
        can_couple=False,
    )


def model_shape(config: ModelConfig, dtype: str) -> ModelShape:
    return ModelShape(config.layers, config.kv_heads, config.head_size, dtype)
