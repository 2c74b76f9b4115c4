"""Rules that say how many drafts of each sequence are verified (dspark-spec, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Int32
from dspark.scheduling.allocation import allocate, best_budget, causal_greedy, marginal_gain
from dspark.scheduling.confidence import Float64


@dataclass(frozen=True)
class FixedLength:
    """The first `length` drafts, whatever their confidence."""

    length: int

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        return np.minimum(limits, np.int32(self.length))


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Every request stops before its first draft whose conditional confidence c_j is below the threshold.

    The paper's static threshold: it bounds c_j = a_j / a_{j-1}, not the survival a_j. c_j depends on x_1..x_{j-1} only.
    """

    threshold: float

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        before = np.ones_like(survival)
        before[:, 1:] = survival[:, :-1]
        confident = np.logical_and.accumulate(survival >= self.threshold * before, axis=1)
        return np.minimum(limits, confident.sum(axis=1, dtype=np.int32))


@dataclass(frozen=True)
class Budget:
    """The likeliest drafts up to a number that was fixed before the blocks were drafted (the stale budget)."""

    drafts: int

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        return allocate(survival, limits, self.drafts)


@dataclass(frozen=True)
class CausalGreedy:
    """Algorithm 1 over the seconds [N + 1] of a round that verifies 0..N drafts."""

    seconds: Float64
    extra_tokens: int                # tokens of the round that no decoding sequence gives: prompts that end in it

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        return causal_greedy(survival, limits, 1.0 / self.seconds, self.extra_tokens)


@dataclass(frozen=True)
class GlobalOptimum:
    """The lengths of the largest Theta over the survivals of this very round, from the seconds [N + 1] as above.

    It looks at drafts before it decides on them: lossless for greedy requests and under coupled verification only.
    """

    seconds: Float64
    extra_tokens: int

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        return allocate(survival, limits, best_budget(survival, limits, 1.0 / self.seconds, self.extra_tokens))


@dataclass(frozen=True)
class MarginalGain:
    """A draft is verified while it is likelier to survive than its time would be worth elsewhere.

    `prices` [N], non-decreasing, are fixed before the blocks are drafted: the n-th likeliest draft is admitted if its
    survival exceeds prices[n - 1] and all before it were.
    """

    prices: Float64

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        return marginal_gain(survival, limits, self.prices)
