"""The load-aware policy: every round the choice of sources and lengths with the most expected tokens a second.

The objective counts the whole round, draft and verification, over measured times: Theta = tau / (T_draft + T_verify).
So it may leave out the drafter for a sequence or for all, and now and then tries it again to notice a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Bool, Int32
from dspark.scheduling.allocation import convex_minorant, likeliest_survivals
from dspark.scheduling.batch import Batch, LengthRule, Plan
from dspark.scheduling.confidence import Float64
from dspark.scheduling.costs import StepCosts
from dspark.scheduling.length_rules import Budget, CausalGreedy, GlobalOptimum, MarginalGain

RULES = ("marginal", "stale", "causal", "global")
MINIMUM_GAIN = 0.02                  # drafting must promise so much more than not drafting: against churn
EXPLORATION = 0.01                   # share of the time that trying the drafter against the odds may cost


@dataclass(frozen=True)
class _Option:
    """A choice of sources, with what it promises at its best number of verified drafts."""

    drafter: Bool                    # [R]
    limits: Int32                    # [R] of the drafts there would be
    seconds: Float64                 # [N + 1] of the round, by drafts verified
    budget: int                      # where throughput is largest
    throughput: float                # Theta there, tokens per second


class AdaptivePolicy:
    """Maximises expected tokens per second, with one of four length rules for drafted blocks.

    `marginal`: a draft is admitted while its survival exceeds the price of its time at the expected optimum.
    `stale`: as many as the optimum of the expected survivals has (section 5.2). `causal`: Algorithm 1.
    `global`: the optimum over the drafted blocks' own survivals, lossless under coupled verification only.
    Lookup drafts are functions of the past, so their global optimum is lossless under each of them.
    """

    uses_drafter = True
    learns = True

    def __init__(self, costs: StepCosts, rule: str = RULES[0], uses_lookup: bool = False) -> None:
        self._costs = costs
        self._rule = rule
        self.uses_lookup = uses_lookup
        self._credit = 0.0           # seconds that exploration may spend

    def plan(self, batch: Batch) -> Plan:
        """The sources with the largest Theta over expected survivals, and the rule that goes with it."""
        plain = self._option(batch, (batch.floors > 0) & (batch.lookup_lengths == 0) & (batch.limits > 0))
        best = max((self._option(batch, mask) for mask in _drafting_masks(batch)),
                   key=lambda option: option.throughput, default=plain)
        if best.throughput <= plain.throughput * (1.0 + MINIMUM_GAIN):
            best = plain
        floors = batch.floors
        if best.drafter.any():
            self._credit = 0.0
        elif (tried := self._explore(batch, plain)) is not None:
            best, floors = tried, np.maximum(floors, tried.drafter.astype(np.int32))
        lookup = (batch.lookup_lengths > 0) & (batch.limits > 0) & ~best.drafter & self.uses_lookup
        return Plan(best.drafter, lookup, floors, self._length_rule(batch, best))

    def _option(self, batch: Batch, drafter: Bool) -> _Option:
        lookup_limits = np.minimum(batch.limits, batch.lookup_lengths) if self.uses_lookup else 0 * batch.limits
        limits = np.where(drafter, batch.limits, lookup_limits)
        survivals = likeliest_survivals(np.where(drafter[:, None], batch.expected, batch.lookup), limits)
        tokens = batch.size + batch.riding_tokens + np.arange(survivals.size + 1)
        seconds = self._costs.target_seconds(batch.size + batch.riding_sequences, tokens, batch.context)
        if drafter.any():
            seconds = seconds + self._costs.drafter_seconds(int(drafter.sum()))
        expected_tokens = batch.size + batch.riding_samples + np.concatenate([[0.0], survivals.cumsum()])
        throughput = expected_tokens / seconds
        budget = int(throughput.argmax())
        return _Option(drafter, limits, seconds, budget, float(throughput[budget]))

    def _explore(self, batch: Batch, plain: _Option) -> _Option | None:
        """Draft for the sequence least drafted for, when the time saved up pays for it."""
        candidates = np.flatnonzero((batch.limits > 0) & (batch.lookup_lengths == 0))
        if not candidates.size:
            return None
        one = np.zeros(batch.size, np.bool_)
        one[candidates[batch.blocks[candidates].argmin()]] = True
        tried = self._option(batch, one)
        spent = float(tried.seconds[min(1, len(tried.seconds) - 1)] - plain.seconds[0])
        round_seconds = float(plain.seconds[plain.budget])
        self._credit = min(self._credit + EXPLORATION * round_seconds, 2.0 * spent)
        if self._credit < spent:
            return None
        self._credit -= spent
        return tried

    def _length_rule(self, batch: Batch, option: _Option) -> LengthRule:
        if not option.drafter.any() or self._rule == "stale":
            return Budget(option.budget)
        if self._rule == "causal":
            return CausalGreedy(option.seconds, batch.riding_samples)
        if self._rule == "global":
            return GlobalOptimum(option.seconds, batch.riding_samples)
        return MarginalGain(option.throughput * np.diff(convex_minorant(option.seconds)))


def _drafting_masks(batch: Batch) -> Iterator[Bool]:
    """Sequences for which a block promises more than their lookup draft: the best 1, 2, 4, … of them, and all."""
    positions = np.arange(batch.expected.shape[1]) < batch.limits[:, None]
    gains = ((batch.expected - batch.lookup) * positions).sum(axis=1)
    order = (-gains).argsort(kind="stable")
    promising = int((gains > 0).sum())
    size = 1
    while promising:
        mask = np.zeros(batch.size, np.bool_)
        mask[order[: min(size, promising)]] = True
        yield mask
        if size >= promising:
            return
        size *= 2
