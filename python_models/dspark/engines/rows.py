"""Flattening a ragged step into the graph's rows, with the padding and splitting that keep it exact.

OpenVINO's CPU plugin picks kernels by the number of rows, and the kernels round differently: paged attention has one
for a sequence's single row, the matrix products have others for a single row and for very many. `RowRules` keeps
every run inside the range where a token's logits are bit-identical, whatever shares its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import Int32

Int64 = npt.NDArray[np.int64]

ATTENTION_PADDING = "attention"      # lone rows are repeated for attention only
TOKEN_PADDING = "tokens"             # lone rows are repeated through the whole graph


@dataclass(frozen=True)
class RowRules:
    """How many rows the kernels may see; found by the build's probe."""

    padding: str                     # ATTENTION_PADDING | TOKEN_PADDING
    min_rows_per_sequence: int
    min_rows_per_run: int
    max_rows_per_run: int            # a larger step becomes several runs; 0: never

    @property
    def max_tokens_per_run(self) -> int:
        """Tokens of one run, so that their padded rows stay below the maximum; 0: any number."""
        return self.max_rows_per_run // (self.min_rows_per_sequence if self.padding == TOKEN_PADDING else 1)


NO_RULES = RowRules(ATTENTION_PADDING, 1, 1, 0)


@dataclass(frozen=True)
class RowPlan:
    """How T tokens of R sequences become G graph rows, and those A rows of attention (all at least as many)."""

    token_of_row: Int64              # [G] the token each graph row reads
    position_of_row: Int64           # [G]
    row_of_token: Int64              # [T] where each token's outputs are
    attention_rows: Int64            # [A] the graph row each attention row reads
    output_rows: Int64               # [G] the attention row each graph row reads back
    attention_counts: Int32          # [R] attention rows of each sequence: what its slot is written with


def plan_rows(positions: Int32, token_counts: Int32, rules: RowRules) -> RowPlan:
    """Lay out sequences of `token_counts` [R] tokens that start at `positions` [R]."""
    graph_counts = token_counts.copy()
    if rules.padding == TOKEN_PADDING:
        graph_counts = np.maximum(graph_counts, rules.min_rows_per_sequence)
    graph_counts[-1] += max(0, rules.min_rows_per_run - int(graph_counts.sum()))
    attention_counts = np.maximum(graph_counts, rules.min_rows_per_sequence)
    token_of_row, row_of_token, offsets = _repeat_last(token_counts, graph_counts)
    attention_rows, output_rows, _ = _repeat_last(graph_counts, attention_counts)
    return RowPlan(
        token_of_row,
        np.repeat(positions, graph_counts).astype(np.int64) + offsets,
        row_of_token,
        attention_rows,
        output_rows,
        attention_counts.astype(np.int32),
    )


def padded(rows: Int64, rules: RowRules) -> Int64:
    """Rows to gather for a matrix product: none, or at least as many as a run must have."""
    return np.resize(rows, rules.min_rows_per_run) if 0 < rows.size < rules.min_rows_per_run else rows


def begins(counts: Sequence[int] | npt.NDArray[Any]) -> Int32:
    """[0, c_0, c_0 + c_1, …]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _repeat_last(counts: Int32, padded_counts: Int32) -> tuple[Int64, Int64, Int64]:
    """Pad every group of `counts` to `padded_counts` by repeating its last member.

    Returns the source of each padded member, the place of each original member, and each padded member's offset.
    """
    own = np.repeat(counts, padded_counts)
    offsets = np.arange(padded_counts.sum()) - np.repeat(begins(padded_counts)[:-1], padded_counts)
    sources = np.repeat(begins(counts)[:-1], padded_counts) + np.minimum(offsets, own - 1)
    return sources.astype(np.int64), np.flatnonzero(offsets < own).astype(np.int64), offsets.astype(np.int64)
