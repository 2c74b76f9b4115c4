"""The drafter's context: K and V of the last W positions of every slot, one ring of rows a slot and layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import DrafterStep, Float32, Int32

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NewRows:
    """The feature rows of a step that are worth computing: for every request the last W of those it brings."""

    sources: Int64                   # [n] rows of step.context
    slots: Int64                     # [n]
    positions: Int32                 # [n]


class ContextRings:
    """Rings that a compiled graph reads in place; the row of position p lies at p mod W.

    The order of rows in a ring means nothing to attention, because RoPE sits in K: a slot that has seen n positions
    has its min(n, W) valid rows first.
    """

    def __init__(self, pools: int, slots: int, window: int, kv_heads: int, head_size: int) -> None:
        self.window = window
        self.pools = [np.zeros((slots, window, kv_heads, head_size), np.float32) for _ in range(pools)]
        self.lengths = np.zeros(slots, np.int32)   # positions seen

    def valid_rows(self, slots: Int32) -> Int32:
        """Rows of each slot that hold a position, [R]."""
        return np.minimum(self.lengths[slots], self.window).astype(np.int32)

    def plan(self, step: DrafterStep) -> NewRows:
        """Which feature rows of the step have to be computed and where they go."""
        kept = np.minimum(step.context_counts, self.window)
        offsets = np.arange(kept.sum()) - np.repeat(np.cumsum(kept), kept)     # -kept[r]..-1 in every request
        return NewRows(
            sources=np.repeat(np.cumsum(step.context_counts), kept) + offsets,
            slots=np.repeat(step.slots, kept).astype(np.int64),
            positions=(np.repeat(step.positions, kept) + offsets).astype(np.int32),
        )

    def write(self, rows: NewRows, values: Sequence[Float32]) -> None:
        """Put the rows' K and V in their places; `values` [n, K, D] in the order of the pools."""
        for pool, value in zip(self.pools, values, strict=True):
            pool[rows.slots, rows.positions % self.window] = value
