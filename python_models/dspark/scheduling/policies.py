"""How many draft tokens of each request are verified: what a policy is, and those that need no measured curve."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dspark.engines.contract import Int32
from dspark.errors import ConfigurationError
from dspark.scheduling.confidence import Float64

_CHOICES = "none, full, fixed:N or threshold:C"


class Scheduler(Protocol):
    """A scheduling policy (dspark-spec, section 5).

    To stay lossless under sampling, whether x_{r,j} is verified may depend only on what is known before x_{r,j} is
    drawn: the confidences of request r up to c_j, and never on its later ones.
    """

    @property
    def drafts(self) -> bool:
        """Whether blocks should be drafted at all."""

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        """Draft tokens to verify [R], from survival [R, gamma] and the most that each request can take [R]."""


@dataclass(frozen=True)
class NoDrafting:
    """`none`: plain decoding."""

    drafts: bool = False

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        return np.zeros_like(limits)


@dataclass(frozen=True)
class FixedLength:
    """`fixed:N` and, with N = gamma, `full`: the first N drafts, whatever their confidence."""

    length: int
    drafts: bool = True

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        return np.minimum(limits, np.int32(self.length))


@dataclass(frozen=True)
class ConfidenceThreshold:
    """`threshold:C`: every request stops before its first draft whose conditional confidence c_j is below C.

    The paper's static threshold: C bounds c_j = a_j / a_{j-1}, not the survival a_j. c_j depends on x_1..x_{j-1} only.
    """

    threshold: float
    drafts: bool = True

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        before = np.ones_like(survival)
        before[:, 1:] = survival[:, :-1]
        confident = np.logical_and.accumulate(survival >= self.threshold * before, axis=1)
        return np.minimum(limits, confident.sum(axis=1, dtype=np.int32))


def make_scheduler(policy: str, gamma: int) -> Scheduler:
    """The scheduler of a policy: none, full, fixed:N (0 <= N <= gamma) or threshold:C (0 <= C <= 1).

    Raises ConfigurationError for anything else, and for `adaptive`, which needs a measured throughput curve.
    """
    if policy == "none":
        return NoDrafting()
    if policy == "full":
        return FixedLength(gamma)
    if fixed := re.fullmatch(r"fixed:([0-9]+)", policy):
        if int(fixed[1]) > gamma:
            raise ConfigurationError(f"policy {policy!r}: a block has {gamma} tokens; choose fixed:0 to fixed:{gamma}")
        return FixedLength(int(fixed[1]))
    if threshold := re.fullmatch(r"threshold:([0-9]*\.?[0-9]+)", policy):
        if float(threshold[1]) > 1.0:
            raise ConfigurationError(f"policy {policy!r}: choose threshold:C with a probability C from 0 to 1")
        return ConfidenceThreshold(float(threshold[1]))
    if policy == "adaptive":
        raise ConfigurationError(
            "policy 'adaptive' needs a profile, the measured throughput curve of this engine, and none is loaded; "
            f"choose {_CHOICES}"
        )
    raise ConfigurationError(f"unknown policy {policy!r}; choose {_CHOICES} (0 <= N <= {gamma}, 0 <= C <= 1)")
