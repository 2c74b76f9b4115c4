"""What is counted: for one request (sent with its last chunk) and for one round (for the metrics)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


@dataclass
class SequenceStatistics:
    """Counts and times of one sequence; times are `time.perf_counter` seconds. A round is one verification."""

    block_size: int
    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    lookup_rounds: int = 0           # whose drafts came from prompt lookup
    lookup_verified: int = 0
    lookup_accepted: int = 0
    acceptable: int = 0              # accepted, also beyond what a diagnosis lets be committed
    verified_by_position: list[int] = field(init=False)
    accepted_by_position: list[int] = field(init=False)
    judged_by_position: list[int] = field(init=False)        # verified, and every draft before it was accepted

    def __post_init__(self) -> None:
        self.verified_by_position = [0] * self.block_size
        self.accepted_by_position = [0] * self.block_size
        self.judged_by_position = [0] * self.block_size

    def count_round(self, verified: int, accepted: int, lookup: bool) -> None:
        """Count one round that verified `verified` draft tokens and accepted the first `accepted` of them."""
        self.rounds += 1
        self.verified += verified
        self.accepted += accepted
        if lookup:
            self.lookup_rounds += 1
            self.lookup_verified += verified
            self.lookup_accepted += accepted
        for position in range(verified):
            self.verified_by_position[position] += 1
            self.accepted_by_position[position] += position < accepted
            self.judged_by_position[position] += position <= accepted

    def report(self, seed: int, prompt_tokens: int, output_tokens: int) -> str:
        """The `statistics` output, as JSON. tau is accepted tokens a round, bonus included; null without a round.

        accepted_by_position / judged_by_position is the conditional acceptance: that of x_k where x_1..x_{k-1} were
        accepted. verified_by_position also counts the drafts behind a rejected one.
        """
        return json.dumps({
            "seed": seed,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "rounds": self.rounds,
            "drafted": self.drafted,
            "verified": self.verified,
            "accepted": self.accepted,
            "lookup_rounds": self.lookup_rounds,
            "lookup_verified": self.lookup_verified,
            "lookup_accepted": self.lookup_accepted,
            "acceptable": self.acceptable,
            "tau": round(1 + self.accepted / self.rounds, 4) if self.rounds else None,
            "verified_by_position": self.verified_by_position,
            "accepted_by_position": self.accepted_by_position,
            "judged_by_position": self.judged_by_position,
            "queue_ms": _milliseconds(self.submitted, self.admitted),
            "ttft_ms": _milliseconds(self.submitted, self.first_token),
            "total_ms": _milliseconds(self.submitted, self.last_token),
        })


def _milliseconds(start: float, end: float) -> float:
    return round(1e3 * (end - start), 3)


@dataclass
class RoundReport:
    """One round in numbers, filled in while it runs; times are seconds of wall time."""

    block_size: int
    sequences: int = 0               # R of the target step
    prefill_tokens: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    acceptable: int = 0              # what the target would keep: in a diagnosis more than what is committed
    lookup_verified: int = 0         # of the verified, those from prompt lookup
    lookup_accepted: int = 0
    output_tokens: int = 0
    active: int = 0                  # sequences that hold a slot after the round
    waiting: int = 0
    kv_blocks_used: int = 0
    parted: int = 0                  # positions where acceptance has parted from what confidence promised
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0        # the round without its two engine steps
    first_token_seconds: list[float] = field(default_factory=list)
    token_gap_seconds: list[float] = field(default_factory=list)     # time since a sequence's last tokens / new tokens
    verified_at: Float64 = field(init=False)      # [gamma] draft tokens verified at each position
    predicted_at: Float64 = field(init=False)     # [gamma] their predicted survival, summed
    observed_at: Float64 = field(init=False)      # [gamma] how many survived

    def __post_init__(self) -> None:
        self.verified_at, self.predicted_at, self.observed_at = (np.zeros(self.block_size) for _ in range(3))

    def count_verification(self, survival: Float64, accepted: int, acceptable: int) -> None:
        """Count one sequence's verified drafts, of predicted survival [n].

        The first `acceptable` of them survived, the first `accepted` were committed.
        """
        self.verified += len(survival)
        self.accepted += accepted
        self.acceptable += acceptable
        self.verified_at[: len(survival)] += 1
        self.predicted_at[: len(survival)] += survival
        self.observed_at[:acceptable] += 1
