"""What a scheduler asks about time: the seconds of a target step and of a drafter step."""

from __future__ import annotations

from typing import Protocol

from dspark.scheduling.confidence import Float64, Int64


class StepCosts(Protocol):
    """Times of the two engines' steps, measured beforehand (`dspark profile`) or while serving."""

    def target_seconds(self, sequences: int, tokens: Int64, context: float) -> Float64:
        """Seconds [N] of target steps with `sequences` requests and tokens [N] in all (prefill included).

        `context` is the mean number of tokens that a request has behind it. Non-decreasing in tokens.
        """

    def drafter_seconds(self, sequences: int) -> float:
        """Seconds of a drafter step that drafts for `sequences` requests, the append of their context included."""


class ObservingCosts(Protocol):
    """Costs that are corrected by what served steps took."""

    def observe_target(self, sequences: int, tokens: int, context: float, seconds: float) -> None:
        """A target step of `sequences` requests, `tokens` tokens and mean `context` took so long."""

    def observe_drafter(self, sequences: int, seconds: float) -> None:
        """A drafter step for `sequences` requests took so long."""
