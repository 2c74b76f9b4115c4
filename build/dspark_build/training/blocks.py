"""Blocks cut from sequences: many anchors share one context, each block sees its own past alone (dspark-spec, 3).

Axes: N sequences, A anchors a sequence, gamma block size, C context rows, Q = A * gamma block rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark_build.training.data import TrainingSequence

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BlockBatch:
    """What one pass needs. Block position k (0-based) holds the labels of x_{k+1}; `valid` ends with the response."""

    taps: Tensor                     # [N, C, m * d]
    context_tokens: Tensor           # [N, C + 1] tokens at positions 0..C
    anchor_positions: Tensor         # [N, A] position of x_0
    tokens: Tensor                   # [N, A, gamma + 1] x_0..x_gamma, the true ones
    valid: Tensor                    # [N, A, gamma] label exists
    mask: Tensor                     # [N, Q, C + Q] where a block row may look
    teacher_hidden: Tensor           # [U, d] last hidden states at the distinct positions that predict a label
    teacher_log_z: Tensor            # [U]
    teacher_rows: Tensor             # [N, A, gamma] row of the above for each block position

    @property
    def anchors(self) -> Tensor:
        """x_0 [N, A]."""
        return self.tokens[..., 0]

    @property
    def previous(self) -> Tensor:
        """x_{k-1} for k = 1..gamma [N, A, gamma]."""
        return self.tokens[..., :-1]

    @property
    def labels(self) -> Tensor:
        """x_k for k = 1..gamma [N, A, gamma]."""
        return self.tokens[..., 1:]


def sample_anchors(sequence: TrainingSequence, count: int, random: np.random.Generator) -> Int64:
    """Up to `count` distinct anchor positions in the response, rising: each has a token before and one after it."""
    drawn = random.choice(sequence.anchors, size=min(count, sequence.anchors), replace=False)
    return np.sort(drawn).astype(np.int64) + sequence.prompt_length


def whole_block_anchors(sequence: TrainingSequence, count: int, gamma: int) -> Int64:
    """Up to `count` evenly spaced anchors whose block of gamma labels lies within the response (for validation)."""
    available = sequence.anchors - gamma + 1
    if available <= 0:
        return np.zeros(0, np.int64)
    spaced = np.linspace(0, available - 1, min(count, available)).round().astype(np.int64)
    return np.unique(spaced) + sequence.prompt_length


def block_mask(anchor_positions: Tensor, gamma: int, context_rows: int, window: int) -> Tensor:
    """Mask [N, A * gamma, C + A * gamma] of blocks anchored at [N, A].

    A row of block a sees the last `window` context rows before its anchor (not the anchor's own: the target has not
    read it yet) and every row of its own block.
    """
    sequences, blocks = anchor_positions.shape
    device = anchor_positions.device
    rows = torch.arange(context_rows, device=device)
    anchors = anchor_positions.repeat_interleave(gamma, dim=1)[..., None]
    context = (rows < anchors) & (rows >= anchors - window)
    owner = torch.arange(blocks, device=device).repeat_interleave(gamma)
    own_block = (owner[:, None] == owner).expand(sequences, -1, -1)
    return torch.cat([context, own_block], -1)


def make_batch(
    sequences: Sequence[TrainingSequence],
    anchors: Sequence[Int64],
    gamma: int,
    window: int,
    device: torch.device | str = "cpu",
) -> BlockBatch:
    """Blocks of `sequences` at the given `anchors`, padded to the longest context and the most anchors."""
    count = len(sequences)
    blocks = max(len(positions) for positions in anchors)
    context_rows = max(int(positions[-1]) for positions in anchors)
    taps = np.zeros((count, context_rows, sequences[0].tap_size), np.float16)
    context_tokens = np.zeros((count, context_rows + 1), np.int64)
    positions = np.zeros((count, blocks), np.int64)
    tokens = np.zeros((count, blocks, gamma + 1), np.int64)
    valid = np.zeros((count, blocks, gamma), bool)
    teacher_rows = np.zeros((count, blocks, gamma), np.int64)
    hidden, log_z, taken = [], [], 0
    for n, (sequence, own) in enumerate(zip(sequences, anchors, strict=True)):
        length, last = len(sequence.tokens), len(own)
        rows = min(length, context_rows)
        taps[n, :rows] = sequence.context(rows)
        known = sequence.tokens[: context_rows + 1]
        context_tokens[n, : len(known)] = known
        positions[n] = np.pad(own, (0, blocks - last), mode="edge")
        places = own[:, None] + np.arange(gamma + 1)
        tokens[n, :last] = sequence.tokens[np.minimum(places, length - 1)]
        valid[n, :last] = places[:, 1:] < length
        # The hidden state at position i predicts token i + 1.
        predicting = np.minimum(places[:, :-1], length - 2)
        distinct, where = np.unique(predicting, return_inverse=True)
        teacher_rows[n, :last] = where.reshape(predicting.shape) + taken
        hidden.append(sequence.last[distinct])
        log_z.append(sequence.log_z[distinct])
        taken += len(distinct)
    anchor_positions = torch.from_numpy(positions).to(device)
    return BlockBatch(
        taps=torch.from_numpy(taps).to(device).float(),
        context_tokens=torch.from_numpy(context_tokens).to(device),
        anchor_positions=anchor_positions,
        tokens=torch.from_numpy(tokens).to(device),
        valid=torch.from_numpy(valid).to(device),
        mask=block_mask(anchor_positions, gamma, context_rows, window),
        teacher_hidden=torch.from_numpy(np.concatenate(hidden)).to(device).float(),
        teacher_log_z=torch.from_numpy(np.concatenate(log_z)).to(device),
        teacher_rows=torch.from_numpy(teacher_rows).to(device),
    )
