"""Cutting a ragged target step into padded runs over linear caches.

In a verification run a row is a slot: the run covers neighbouring slots, those without a request among them. Such a
row, like the padding of a short one, writes behind what its slot holds, where the next step starts, and is ignored.
A request with more tokens than a verification row may have takes runs of its own, one row and one chunk each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import Int32, TargetStep
from dspark.engines.rows import begins
from dspark.engines.selection import Selection
from dspark.engines.tensorrt_record import PREFILL_PROFILE, VERIFY_PROFILE, TensorRtTargetRecord, bucket_for

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """A stretch of one request's tokens."""

    request: int
    slot: int
    first: int                       # offset within the request
    count: int


@dataclass(frozen=True)
class PaddedRun:
    """The inputs of one run besides its caches; rows are the slots from `first_slot` on."""

    profile: int
    first_slot: int
    pieces: tuple[Piece, ...]
    logit_counts: tuple[int, ...]    # of each piece, how many of the row's logits are asked for, the first ones
    feature_counts: tuple[int, ...]  # of each piece, its count or 0
    tokens: Int64                    # [R, L]
    positions: Int64                 # [R, L]
    logit_rows: Int64                # [R, N]
    mask: npt.NDArray[np.bool_]      # [R, 1, L, capacity]
    write_at: Int64                  # [R]

    @property
    def inputs(self) -> dict[str, npt.NDArray[Any]]:
        """By the names of the graph's inputs."""
        return {name: getattr(self, name) for name in ("tokens", "positions", "logit_rows", "mask", "write_at")}


def padded_runs(
    step: TargetStep, selection: Selection, committed: Int32, record: TensorRtTargetRecord
) -> Iterator[PaddedRun]:
    """All runs of a step, a request's in order. committed [max_slots]: tokens each slot held before the step."""
    ends = committed.copy()
    ends[step.slots] = step.positions + step.token_counts
    longest = record.token_buckets[-1]
    whole = np.flatnonzero(step.token_counts <= longest).tolist()
    chunked = np.flatnonzero(step.token_counts > longest).tolist()
    if whole:
        pieces = [Piece(r, int(step.slots[r]), 0, int(step.token_counts[r])) for r in whole]
        yield _run(VERIFY_PROFILE, pieces, step, selection, ends, record)
    for r in chunked:
        size = record.prefill_buckets[-1]
        for first in range(0, int(step.token_counts[r]), size):
            piece = Piece(r, int(step.slots[r]), first, min(size, int(step.token_counts[r]) - first))
            yield _run(PREFILL_PROFILE, [piece], step, selection, ends, record)


def _run(
    profile: int,
    pieces: Sequence[Piece],
    step: TargetStep,
    selection: Selection,
    ends: Int32,
    record: TensorRtTargetRecord,
) -> PaddedRun:
    """Lay the pieces out, a slot a row."""
    slots = [piece.slot for piece in pieces]
    rows = bucket_for(1 + max(slots) - min(slots), record.row_buckets)
    first_slot = min(min(slots), record.limits.max_slots - rows)
    lengths = record.token_buckets if profile == VERIFY_PROFILE else record.prefill_buckets
    length = bucket_for(max(piece.count for piece in pieces), lengths)
    logit_counts = tuple(_asked(piece, step, selection) for piece in pieces)
    asked = bucket_for(max(1, *logit_counts), record.token_buckets)

    tokens = np.zeros((rows, length), np.int64)
    logit_rows = np.zeros((rows, asked), np.int64)
    write_at = ends[first_slot : first_slot + rows].astype(np.int64)
    begin = begins(step.token_counts)
    for piece, count in zip(pieces, logit_counts, strict=True):
        row, start = piece.slot - first_slot, int(begin[piece.request]) + piece.first
        tokens[row, : piece.count] = step.tokens[start : start + piece.count]
        write_at[row] = step.positions[piece.request] + piece.first
        logit_rows[row, :count] = np.arange(piece.count - count, piece.count)
    positions = write_at[:, None] + np.arange(length)
    mask = np.arange(record.capacity) <= positions[:, None, :, None]
    features = tuple(piece.count if step.wants_features[piece.request] else 0 for piece in pieces)
    return PaddedRun(
        profile, first_slot, tuple(pieces), logit_counts, features, tokens, positions, logit_rows, mask, write_at
    )


def _asked(piece: Piece, step: TargetStep, selection: Selection) -> int:
    """How many of the piece's tokens are asked for logits: always its last ones."""
    first_asked = int(step.token_counts[piece.request] - selection.logit_counts[piece.request])
    return min(max(0, piece.first + piece.count - first_asked), piece.count)
