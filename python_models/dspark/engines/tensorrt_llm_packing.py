"""Packing rows of several sequences into runs, and filling the attention plugin's inputs for one run.

Every row runs in the plugin's context phase with paged KV ("chunked context"), verification too: the sequence's past is
read from the pool, the new rows' K and V are written behind it. A slot is rolled back by giving a shorter past.
So nothing of the generation phase is used, neither `spec_decoding_*` nor beam search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import Int32
from dspark.engines.tensorrt_llm_tensors import PERF_KNOBS, PagedShape
from dspark.errors import EngineError

CONTEXT_PHASE = 0                    # of host_request_types
MULTI_BLOCK_MODE = 0                 # place in host_runtime_perf_knobs; every knob is -1 where it is not set


@dataclass(frozen=True)
class Feed:
    """One input of a run by name."""

    name: str
    array: npt.NDArray[Any]


@dataclass(frozen=True)
class Segment:
    """Rows of one request that follow one another, from `first` of its rows on."""

    request: int
    first: int
    count: int
    whole: bool = False              # may not be cut: a block, whose rows see each other


@dataclass(frozen=True)
class Packed:
    """The sequences of one run; their rows lie one sequence after another."""

    requests: tuple[int, ...]        # distinct
    firsts: tuple[int, ...]          # first row of each, counted from the request's first
    counts: tuple[int, ...]


def pack(segments: Sequence[Segment], limit: int) -> Iterator[Packed]:
    """Put segments, request after request, into runs of at most `limit` rows.

    Raises EngineError when a segment that may not be cut is larger than a run.
    """
    rows: dict[int, tuple[int, int]] = {}
    used = 0
    for segment in segments:
        if segment.whole and segment.count > limit:
            raise EngineError(f"{segment.count} rows must run together, but the engine takes {limit}; build it larger")
        first, left = segment.first, segment.count
        while left:
            if used == limit or (segment.whole and left > limit - used):
                yield _packed(rows)
                rows, used = {}, 0
            count = min(left, limit - used)
            start, before = rows.get(segment.request, (first, 0))
            rows[segment.request] = (start, before + count)
            first, left, used = first + count, left - count, used + count
    if rows:
        yield _packed(rows)


def attention_feeds(shape: PagedShape, pool: int, pasts: Int32, counts: Int32, tables: Sequence[Int32]) -> list[Feed]:
    """The attention inputs of one run over R sequences.

    pool: its address on the GPU; pasts [R]: tokens of each sequence that the pool holds and that count; counts [R]: new
    rows; tables: the blocks of each sequence in order, past and new ones.
    """
    lengths = (pasts + counts).astype(np.int32)
    offsets = block_offsets(shape, tables)
    layers = np.arange(shape.layers, dtype=np.int32)
    knobs = np.full(PERF_KNOBS, -1, np.int64)
    knobs[MULTI_BLOCK_MODE] = 1
    return [
        Feed("sequence_length", lengths),
        Feed("context_lengths", counts.astype(np.int32)),
        Feed("cache_indirection", np.zeros((lengths.size, 1, shape.capacity), np.int32)),
        Feed("kv_cache_block_offsets", offsets),
        Feed("host_kv_cache_block_offsets", offsets),
        Feed("host_kv_cache_pool_pointers", np.array([[pool, 0]], np.int64)),     # no second pool on the host
        Feed("host_kv_cache_pool_mapping", np.stack([0 * layers, layers], 1)),
        Feed("host_context_lengths", counts.astype(np.int32)),
        # In the context phase the plugin takes this for the length with the new rows.
        Feed("host_past_key_value_lengths", lengths),
        Feed("host_request_types", np.full(lengths.size, CONTEXT_PHASE, np.int32)),
        Feed("host_max_attention_window_sizes", np.full(shape.layers, shape.capacity, np.int32)),
        Feed("host_sink_token_length", np.zeros(1, np.int32)),
        Feed("host_runtime_perf_knobs", knobs),
        Feed("host_context_progress", np.zeros(1, np.int64)),
    ]


def block_offsets(shape: PagedShape, tables: Sequence[Int32]) -> Int32:
    """Where K and V of each block lie, [1, R, 2, blocks of a sequence], in sizes of a block of one layer's K or V."""
    offsets = np.zeros((1, len(tables), 2, shape.blocks_per_sequence), np.int32)
    for row, table in enumerate(tables):
        offsets[0, row, :, : table.size] = table * (2 * shape.layers) + np.arange(2)[:, None]
    return offsets


def _packed(rows: dict[int, tuple[int, int]]) -> Packed:
    return Packed(tuple(rows), tuple(first for first, _ in rows.values()), tuple(count for _, count in rows.values()))
