"""Confidence to survival, and survival to the number of draft tokens to verify (dspark-spec, sections 4 and 5)."""

from dspark.scheduling.allocation import allocate, best_budget, causal_greedy, marginal_gain, stale_budget
from dspark.scheduling.batch import Batch, LengthRule, Plan
from dspark.scheduling.calibration import Calibration
from dspark.scheduling.confidence import conditional, survival
from dspark.scheduling.costs import ObservingCosts, StepCosts
from dspark.scheduling.curve import ThroughputCurve
from dspark.scheduling.expectation import BlockRecord
from dspark.scheduling.loading import load_costs
from dspark.scheduling.lookup_confidence import LookupRecord
from dspark.scheduling.memory import AcceptanceMemory
from dspark.scheduling.online import OnlineCosts
from dspark.scheduling.policies import Policy, is_adaptive, make_policy, needs_coupling

__all__ = [
    "AcceptanceMemory",
    "Batch",
    "BlockRecord",
    "Calibration",
    "LengthRule",
    "LookupRecord",
    "ObservingCosts",
    "OnlineCosts",
    "Plan",
    "Policy",
    "StepCosts",
    "ThroughputCurve",
    "allocate",
    "best_budget",
    "causal_greedy",
    "conditional",
    "is_adaptive",
    "load_costs",
    "make_policy",
    "marginal_gain",
    "needs_coupling",
    "stale_budget",
    "survival",
]
