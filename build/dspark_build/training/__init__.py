"""Training of drafters in three resumable stages: generate responses, cache states, fit."""

from dspark_build.training.cache import CacheConfig, CachePlan, CacheResult, cache_states, plan_cache
from dspark_build.training.fit import FitResult, fit_drafter
from dspark_build.training.fit_config import FitConfig
from dspark_build.training.generate import GenerateConfig, GenerateResult, generate_responses
from dspark_build.training.plot import plot_curves
from dspark_build.training.recorder import Recorder
from dspark_build.training.self_written import SelfWrittenConfig, write_prompts
from dspark_build.training.state_writer import StateWriter
from dspark_build.training.validation import Acceptance, Validation, validate
from dspark_build.training.vocabulary import response_vocabulary

__all__ = [
    "Acceptance",
    "CacheConfig",
    "CachePlan",
    "CacheResult",
    "FitConfig",
    "FitResult",
    "GenerateConfig",
    "GenerateResult",
    "Recorder",
    "SelfWrittenConfig",
    "StateWriter",
    "Validation",
    "cache_states",
    "fit_drafter",
    "generate_responses",
    "plan_cache",
    "plot_curves",
    "response_vocabulary",
    "validate",
    "write_prompts",
]
