"""engine.json of a TensorRT target and a TensorRT drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.engine_json import BuildFacts
from dspark.engines.tensorrt_contract import (
    GraphContract,
    ModelShape,
    block_contract,
    context_contract,
    target_contract,
)

TARGET_PLAN, CONTEXT_PLAN, BLOCK_PLAN = "engine.plan", "context.plan", "block.plan"
VERIFY_PROFILE, PREFILL_PROFILE = 0, 1


@dataclass(frozen=True)
class PlanFacts:
    """Where a plan can be loaded: plans are neither portable between GPU architectures nor between versions."""

    tensorrt: str                    # version that built it
    compute_capability: str          # of the GPU that it was built on and for, "8.9"
    gpu: str                         # its name, for the reader


@dataclass(frozen=True)
class TensorRtTargetRecord:
    """What the target's folder holds: engine.plan, and how steps are padded to fit it."""

    engine: ClassVar[str] = "tensorrt-target"

    limits: TargetLimits
    model: ModelShape
    capacity: int                    # tokens of a slot's linear cache, padding included
    tap_ids: tuple[int, ...]
    row_buckets: tuple[int, ...]     # slots of a verification run
    token_buckets: tuple[int, ...]   # tokens a row in a verification run; also rows of logits in any run
    prefill_buckets: tuple[int, ...]     # tokens of a run that holds one longer row
    plan: PlanFacts
    facts: BuildFacts

    @property
    def contract(self) -> GraphContract:
        return target_contract(self.limits, self.model, self.capacity, self.tap_ids)


@dataclass(frozen=True)
class TensorRtDrafterRecord:
    """What the drafter's folder holds: context.plan and block.plan, and how steps are padded to fit them."""

    engine: ClassVar[str] = "tensorrt-drafter"

    limits: DrafterLimits
    model: ModelShape
    markov_head_type: str            # "none" | "vanilla" | "gated" | "rnn"
    request_buckets: tuple[int, ...]     # of the block graph
    context_buckets: tuple[int, ...]     # rows of the context graph
    plan: PlanFacts
    facts: BuildFacts

    @property
    def context_contract(self) -> GraphContract:
        return context_contract(self.limits, self.model)

    @property
    def block_contract(self) -> GraphContract:
        return block_contract(self.limits, self.model)


def power_buckets(least: int, most: int) -> tuple[int, ...]:
    """The powers of two from `least` (itself one) on, and the last one of them that reaches `most`."""
    buckets = [least]
    while buckets[-1] < most:
        buckets.append(2 * buckets[-1])
    return tuple(buckets)


def bucket_for(size: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `size`."""
    return next(bucket for bucket in buckets if bucket >= size)
