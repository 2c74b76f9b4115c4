"""What a policy is told about one round before anything is drafted, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dspark.engines.contract import Bool, Int32
from dspark.scheduling.confidence import Float64


@dataclass(frozen=True)
class Batch:
    """The R decoding sequences of a round, known before any block is drafted (dspark-spec, section 5).

    Prompts that are read in the same target step ride along: they cost time, and those that end give a token.
    """

    limits: Int32                    # [R] most drafts that each may have verified
    floors: Int32                    # [R] fewest, where there is a draft at all
    lookup: Float64                  # [R, gamma] survival of the lookup draft; 0 beyond its end
    lookup_lengths: Int32            # [R] tokens of the lookup draft; 0: none
    expected: Float64                # [R, gamma] survival to expect of a drafted block, from earlier rounds
    blocks: Int32                    # [R] blocks drafted so far
    context: float                   # mean number of tokens behind a sequence
    riding_sequences: int = 0
    riding_tokens: int = 0
    riding_samples: int = 0          # of riding_sequences, those whose prompt ends in this step

    @property
    def size(self) -> int:
        """R."""
        return len(self.limits)


class LengthRule(Protocol):
    """How many drafts of each sequence are verified, once all blocks are there.

    To stay lossless under sampling, whether x_{r,j} is verified may depend only on what is known before x_{r,j} is
    drawn: the confidences of request r up to c_j, and never on its later ones.
    """

    def lengths(self, survival: Float64, limits: Int32) -> Int32:
        """Draft tokens to verify [R], from survival [R, gamma] and the most that each can take [R]."""


@dataclass(frozen=True)
class Plan:
    """Where the drafts of a round come from, and the rule for their lengths; made before any block is drafted."""

    drafter: Bool                    # [R] the drafter drafts a block
    lookup: Bool                     # [R] the lookup draft is used; never both
    floors: Int32                    # [R]
    rule: LengthRule
