"""Confidence to survival, and survival to the number of draft tokens to verify (dspark-spec, sections 4 and 5)."""

from dspark.scheduling.allocation import allocate, best_budget, causal_greedy, stale_budget
from dspark.scheduling.calibration import Calibration
from dspark.scheduling.confidence import survival
from dspark.scheduling.policies import Scheduler, make_scheduler

__all__ = [
    "Calibration",
    "Scheduler",
    "allocate",
    "best_budget",
    "causal_greedy",
    "make_scheduler",
    "stale_budget",
    "survival",
]
