"""Validation τ: how long held-out blocks are accepted, position by position (dspark-spec, sections 2 and 6).

On a response that the target decoded greedily, the accepted prefix of a greedy draft is the true text, so teacher
forcing gives the very number of tokens that serving would accept. On a sampled response the chance Σ min(p^t, p^d) of
each position along the text gives the expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from dspark_build.models.contract import BlockDrafter
from dspark_build.training.blocks import BlockBatch, make_batch, whole_block_anchors
from dspark_build.training.data import TrainingSequence
from dspark_build.training.losses import overlap

Float64 = npt.NDArray[np.float64]
SEQUENCES_PER_BATCH = 8


@dataclass(frozen=True)
class Acceptance:
    """What whole blocks of gamma drafts achieve."""

    blocks: int
    tau: float                       # tokens a round, the bonus token included
    conditional: tuple[float, ...]   # [gamma] acceptance at k given that all before were accepted; NaN if none were


@dataclass(frozen=True)
class Validation:
    greedy: Acceptance
    sampled: Acceptance
    greedy_by_domain: dict[str, Acceptance]


def summarise(accepted: Float64) -> Acceptance:
    """Turn chances of acceptance [blocks, gamma], each given the positions before it, into τ and its profile."""
    survival = np.cumprod(accepted, axis=1)
    before = np.concatenate([np.ones((len(accepted), 1)), survival[:, :-1]], 1).sum(0)
    with np.errstate(invalid="ignore"):
        conditional = survival.sum(0) / before
    tau = 1 + survival.sum(1).mean() if len(accepted) else float("nan")
    return Acceptance(len(accepted), float(tau), tuple(conditional.tolist()))


@torch.no_grad()
def validate(
    drafter: BlockDrafter,
    sequences: Sequence[TrainingSequence],
    window: int,
    anchors_per_sequence: int,
    device: torch.device | str = "cpu",
) -> Validation:
    """Acceptance over the whole draft vocabulary on held-out `sequences`, greedy ones and sampled ones apart."""
    gamma = drafter.config.block_size
    greedy: dict[str, list[Float64]] = {}
    sampled: list[Float64] = []
    usable = [(s, a) for s in sequences if len(a := whole_block_anchors(s, anchors_per_sequence, gamma))]
    for is_greedy in (True, False):
        chosen = [pair for pair in usable if (pair[0].temperature == 0) == is_greedy]
        for first in range(0, len(chosen), SEQUENCES_PER_BATCH):
            group = chosen[first : first + SEQUENCES_PER_BATCH]
            batch = make_batch([s for s, _ in group], [a for _, a in group], gamma, window, device)
            accepted = _accepted(drafter, batch, is_greedy)
            for row, (sequence, anchors) in zip(accepted, group, strict=True):
                own = row[: len(anchors)].double().cpu().numpy()
                if is_greedy:
                    greedy.setdefault(sequence.domain, []).append(own)
                else:
                    sampled.append(own)
    everything = [block for blocks in greedy.values() for block in blocks]
    return Validation(
        greedy=_joined(everything, gamma),
        sampled=_joined(sampled, gamma),
        greedy_by_domain={domain: _joined(blocks, gamma) for domain, blocks in sorted(greedy.items())},
    )


def _joined(blocks: list[Float64], gamma: int) -> Acceptance:
    return summarise(np.concatenate([np.zeros((0, gamma)), *blocks]))


def _accepted(drafter: BlockDrafter, batch: BlockBatch, is_greedy: bool) -> Tensor:
    """Chance of acceptance [N, A, gamma] of each position given the true tokens before it.

    What the target may say outside a reduced draft vocabulary is never accepted: it overlaps with nothing.
    """
    hidden = drafter.block_hidden(batch)
    rows = []
    for n in range(len(hidden)):     # one sequence at a time: logits over V for all blocks would not fit
        logits = drafter.head_logits(hidden[n], batch.previous[n]).float()
        if is_greedy:
            rows.append((drafter.target_ids(logits.argmax(-1)) == batch.labels[n]).float())
        else:
            places = batch.teacher_rows[n].flatten()
            distinct, where = places.unique(return_inverse=True)
            teacher = F.linear(batch.teacher_hidden[distinct], drafter.lm_head.weight)[where]
            flat = logits.flatten(0, 1)
            chance = overlap(flat, teacher, batch.teacher_log_z[places], flat.new_zeros(flat.shape[-1]))
            rows.append(chance.clamp(max=1).view(batch.labels[n].shape))
    return torch.stack(rows)
