"""Flattening a ragged step into the graph's rows, with the padding that keeps it exact.

Two kernels of OpenVINO's CPU plugin round differently when they see a single row: paged attention (one row of a
sequence: its decode kernel) and the matrix products (one row of the whole step). Neither is ever given one, so a
token's logits are bit-identical in plain decoding, in verification and whatever the neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import Int32

Int64 = npt.NDArray[np.int64]

ATTENTION_PADDING = "attention"      # a lone row is repeated for attention only
TOKEN_PADDING = "tokens"             # a lone row is repeated through the whole graph
NO_PADDING = "none"
PADDINGS = (ATTENTION_PADDING, TOKEN_PADDING, NO_PADDING)


@dataclass(frozen=True)
class RowPlan:
    """How T tokens of R sequences become G graph rows, and those A rows of attention (all at least as many)."""

    token_of_row: Int64              # [G] the token each graph row reads
    position_of_row: Int64           # [G]
    row_of_token: Int64              # [T] where each token's outputs are
    attention_rows: Int64            # [A] the graph row each attention row reads
    output_rows: Int64               # [G] the attention row each graph row reads back
    attention_counts: Int32          # [R] attention rows of each sequence: what its slot is written with


def plan_rows(positions: Int32, token_counts: Int32, padding: str) -> RowPlan:
    """Lay out sequences of `token_counts` [R] tokens that start at `positions` [R]."""
    padded = np.maximum(token_counts, 2)
    graph_counts = padded if padding == TOKEN_PADDING else token_counts
    if padding == ATTENTION_PADDING and token_counts.sum() == 1:
        graph_counts = padded
    attention_counts = token_counts if padding == NO_PADDING else padded
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


def at_least_two(rows: Int64, padding: str) -> Int64:
    """Rows to gather for a matrix product: a lone one twice."""
    return np.repeat(rows, 2) if rows.size == 1 and padding != NO_PADDING else rows


def begins(counts: Sequence[int] | npt.NDArray[Any]) -> Int32:
    """[0, c_0, c_0 + c_1, …]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _repeat_last(counts: Int32, padded: Int32) -> tuple[Int64, Int64, Int64]:
    """Pad every group of `counts` to `padded` by repeating its last member.

    Returns the source of each padded member, the place of each original member, and each padded member's offset.
    """
    offsets = np.arange(padded.sum()) - np.repeat(begins(padded)[:-1], padded)
    sources = np.repeat(begins(counts)[:-1], padded) + np.minimum(offsets, np.repeat(counts, padded) - 1)
    places = np.flatnonzero(offsets < np.repeat(counts, padded))
    return sources.astype(np.int64), places.astype(np.int64), offsets.astype(np.int64)
