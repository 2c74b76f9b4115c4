"""engine.json of a TensorRT-LLM target and a TensorRT-LLM drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.engine_json import BuildFacts
from dspark.engines.tensorrt_llm_tensors import (
    EngineTensor,
    PagedShape,
    drafter_inputs,
    drafter_outputs,
    target_inputs,
    target_outputs,
)

ENGINE_PLAN = "engine.plan"


@dataclass(frozen=True)
class LlmPlanFacts:
    """Where an engine can be loaded: it is tied to the version that built it and to the GPU's architecture."""

    tensorrt_llm: str
    compute_capability: str          # "8.9"
    gpu: str                         # its name, for the reader


@dataclass(frozen=True)
class TensorRtLlmTargetRecord:
    """What the target's folder holds: engine.plan."""

    engine: ClassVar[str] = "tensorrt_llm-target"

    limits: TargetLimits
    shape: PagedShape
    tap_ids: tuple[int, ...]
    plan: LlmPlanFacts
    facts: BuildFacts

    @property
    def inputs(self) -> tuple[EngineTensor, ...]:
        return target_inputs(self.shape)

    @property
    def outputs(self) -> tuple[EngineTensor, ...]:
        return target_outputs(self.limits)


@dataclass(frozen=True)
class TensorRtLlmDrafterRecord:
    """What the drafter's folder holds: engine.plan."""

    engine: ClassVar[str] = "tensorrt_llm-drafter"

    limits: DrafterLimits
    shape: PagedShape
    markov_head_type: str            # "none" | "vanilla" | "gated" | "rnn"
    mask_token_id: int
    plan: LlmPlanFacts
    facts: BuildFacts

    @property
    def inputs(self) -> tuple[EngineTensor, ...]:
        return drafter_inputs(self.shape, self.limits)

    @property
    def outputs(self) -> tuple[EngineTensor, ...]:
        return drafter_outputs(self.limits)
