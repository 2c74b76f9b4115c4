"""Sampling settings to p^t, and the lossless acceptance rules (dspark-spec, section 6)."""

from dspark.verification.acceptance import (
    Verdict,
    acceptance_probability,
    draft_distribution,
    residual,
    verify_block,
    verify_block_coupled,
)
from dspark.verification.coupling import coupled_choice
from dspark.verification.distribution import Distribution
from dspark.verification.log_probs import log_probs_of
from dspark.verification.sampling import SamplingSettings
from dspark.verification.target import target_distribution

__all__ = [
    "Distribution",
    "SamplingSettings",
    "Verdict",
    "acceptance_probability",
    "coupled_choice",
    "draft_distribution",
    "log_probs_of",
    "residual",
    "target_distribution",
    "verify_block",
    "verify_block_coupled",
]
