"""Scheduling policies: which sequences are drafted for, and how many of their drafts are verified."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dspark.errors import ConfigurationError
from dspark.scheduling.adaptive import RULES, AdaptivePolicy
from dspark.scheduling.batch import Batch, LengthRule, Plan
from dspark.scheduling.costs import StepCosts
from dspark.scheduling.length_rules import ConfidenceThreshold, FixedLength

LOOKUP_SUFFIX = "+lookup"
_CHOICES = "none, full, fixed:N, threshold:C or adaptive, and any of them with +lookup"


class Policy(Protocol):
    """A scheduling policy (dspark-spec, section 5)."""

    @property
    def uses_drafter(self) -> bool:
        """Whether blocks may ever be drafted: if not, no features are asked for."""

    @property
    def uses_lookup(self) -> bool:
        """Whether prompt lookup is a draft source."""

    @property
    def learns(self) -> bool:
        """Whether confidence is corrected by what was accepted in earlier rounds."""

    def plan(self, batch: Batch) -> Plan:
        """Decide where each sequence's draft comes from, before any is drawn."""


@dataclass(frozen=True)
class StaticPolicy:
    """A length rule that needs no measurement; a lookup draft, where there is one, takes the drafter's place."""

    rule: LengthRule
    uses_drafter: bool = True
    uses_lookup: bool = False
    learns: bool = False

    def plan(self, batch: Batch) -> Plan:
        lookup = (batch.lookup_lengths > 0) & (batch.limits > 0) & self.uses_lookup
        drafter = (batch.limits > 0) & ~lookup & self.uses_drafter
        return Plan(drafter, lookup, batch.floors, self.rule)


def make_policy(policy: str, gamma: int, costs: StepCosts | None = None) -> Policy:
    """The policy of a name: none, full, fixed:N (0 <= N <= gamma), threshold:C (0 <= C <= 1) or adaptive[:RULE].

    Each may end in +lookup. Without `costs`, the measured times of the engines, adaptive verifies everything: whoever
    allows that must say so. Raises ConfigurationError for any other name.
    """
    name = policy.removesuffix(LOOKUP_SUFFIX)
    lookup = name != policy
    if name == "none":
        return StaticPolicy(FixedLength(gamma), uses_drafter=False, uses_lookup=lookup)
    if name == "full":
        return StaticPolicy(FixedLength(gamma), uses_lookup=lookup)
    if fixed := re.fullmatch(r"fixed:([0-9]+)", name):
        if int(fixed[1]) > gamma:
            raise ConfigurationError(f"policy {policy!r}: a block has {gamma} tokens; choose fixed:0 to fixed:{gamma}")
        return StaticPolicy(FixedLength(int(fixed[1])), uses_lookup=lookup)
    if threshold := re.fullmatch(r"threshold:([0-9]*\.?[0-9]+)", name):
        if float(threshold[1]) > 1.0:
            raise ConfigurationError(f"policy {policy!r}: choose threshold:C with a probability C from 0 to 1")
        return StaticPolicy(ConfidenceThreshold(float(threshold[1])), uses_lookup=lookup)
    if adaptive := re.fullmatch(r"adaptive(?::([a-z]+))?", name):
        rule = adaptive[1] or RULES[0]
        if rule not in RULES:
            raise ConfigurationError(f"policy {policy!r}: choose adaptive:RULE with RULE one of {', '.join(RULES)}")
        if costs is None:
            return StaticPolicy(FixedLength(gamma), uses_lookup=lookup)
        return AdaptivePolicy(costs, rule, uses_lookup=lookup)
    raise ConfigurationError(f"unknown policy {policy!r}; choose {_CHOICES} (0 <= N <= {gamma}, 0 <= C <= 1)")


def is_adaptive(policy: str) -> bool:
    """Whether a policy of this name needs the engines' measured times."""
    return policy.startswith("adaptive")


def needs_coupling(policy: str) -> bool:
    """Whether a policy of this name is lossless under coupled verification only."""
    return policy.removesuffix(LOOKUP_SUFFIX) == "adaptive:global"


def no_drafts(size: int) -> Plan:
    """The plan of a round in which nobody is drafted for."""
    nobody = np.zeros(size, np.bool_)
    return Plan(nobody, nobody, np.zeros(size, np.int32), FixedLength(0))
