"""From the outcomes of all blocks to the rounds that serving would take, and their counts over many responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark_build.evaluation.replay import Outcomes

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """Counts over S responses, in their order; blocks of up to gamma drafts."""

    rounds: Int64                    # [S]
    tokens: Int64                    # [S] committed by the rounds
    tested: Int64                    # [S, gamma] drafts at each position whose predecessors stand
    accepted: Int64                  # [S, gamma] of them, those that stand
    truncated_rounds: Int64          # [S, gamma] rounds when only the first 1..gamma drafts of a block are used


def anchors_of_rounds(outcomes: Outcomes, most_drafts: int) -> Int64:
    """The blocks [rounds] at which rounds begin, from the first response token on, each with at most `most_drafts`.

    Each round commits what it accepts and one token of the target's own, which is the next anchor.
    """
    steps = (1 + np.minimum(outcomes.accepted, most_drafts)).tolist()
    anchors, a = [], 0
    while a < len(steps):
        anchors.append(a)
        a += steps[a]
    return np.array(anchors, np.int64)


def tally(outcomes: Sequence[Outcomes], gamma: int) -> Tally:
    """Walk every response with blocks of up to gamma drafts, and of fewer."""
    positions = np.arange(gamma)
    rounds, tested, accepted, truncated = [], [], [], []
    for each in outcomes:
        anchors = anchors_of_rounds(each, gamma)
        stand, tried = each.accepted[anchors, None], each.drafted[anchors, None]
        rounds.append(len(anchors))
        tested.append(((positions <= stand) & (positions < tried)).sum(0))
        accepted.append((positions < stand).sum(0))
        truncated.append([len(anchors_of_rounds(each, most)) for most in range(1, gamma + 1)])
    return Tally(
        rounds=np.array(rounds, np.int64),
        tokens=np.array([len(each.accepted) for each in outcomes], np.int64),
        tested=np.array(tested, np.int64),
        accepted=np.array(accepted, np.int64),
        truncated_rounds=np.array(truncated, np.int64),
    )
