"""Does a built drafter give a request the same block whatever shares its run? Measured: kernels differ by CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
from dspark.engines.context_rings import ContextRings
from dspark.engines.contract import DrafterLimits
from dspark.engines.drafter_graphs import Array, DrafterGraphs
from dspark.engines.drafter_record import DrafterRecord, RunSizes

PROBE_SEED = 20_260_706
CONTEXT_ROWS = 128                   # of the largest run of the context graph
REQUESTS = 8                         # of the largest run of the block graph: larger ones gain no time and take memory
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 24, 31, 32, 48, 64, 96, 127, 128)
LEAST = (1, 2)                       # a single row may take kernels of its own
SMALLEST_RUN = 4                     # below it reading the head again and again costs more than exactness is worth

Run = Callable[[Array], list[Array]]  # which rows share a run -> their outputs, in that order


UNSETTLED_REQUESTS = RunSizes(1, REQUESTS)
UNSETTLED_CONTEXT_ROWS = RunSizes(1, CONTEXT_ROWS)


def settle_drafter_exactness(folder: Path, record: DrafterRecord) -> DrafterRecord:
    """The record with the largest runs under which no result depends on its neighbours.

    Where only runs of a few rows would do, an int8 drafter is recorded as inexact instead: text stays lossless with any
    drafter, only a sampled request's stream may then differ between alone and in company. fp32 is exact at any price.
    """
    floor = SMALLEST_RUN if record.facts.precision == "int8" else 1
    for quantise in (True, False) if record.quantise_activations else (False,):
        candidate = replace(record, quantise_activations=quantise)
        random = np.random.default_rng(PROBE_SEED)
        rings = _random_rings(candidate, random)
        graphs = DrafterGraphs(folder, candidate, rings.pools)
        most = min(REQUESTS, candidate.limits.max_slots)
        requests = largest_exact_runs(_block_run(graphs, candidate.limits, random), most, floor)
        rows = largest_exact_runs(_context_run(graphs, candidate.limits, random), CONTEXT_ROWS, floor)
        if requests and rows:
            return replace(candidate, requests_per_run=requests, context_rows_per_run=rows, exact=True)
    return record


def largest_exact_runs(run: Run, rows: int, floor: int = 1) -> RunSizes | None:
    """The largest sizes between which every row's outputs are bit-identical, whatever shares its run.

    Tries runs of 1 to `rows` rows; None if the largest exact ones would have fewer than `floor`.
    """
    sizes = sorted({min(size, rows) for size in SIZES})
    outputs = {size: run(np.arange(size)) for size in sizes}
    moved = {size: [values[::-1] for values in run(np.arange(size)[::-1])] for size in sizes}
    for most in (size for size in reversed(sizes) if size >= min(floor, rows)):
        for least in (least for least in LEAST if least <= most):
            tried = [size for size in sizes if least <= size <= most]
            if all(
                _same(outputs[size], outputs[most], size) and _same(moved[size], outputs[most], size) for size in tried
            ):
                return RunSizes(least, most)
    return None


def _same(some: list[Array], all_of_them: list[Array], rows: int) -> bool:
    return all(np.array_equal(a, b[:rows], equal_nan=True) for a, b in zip(some, all_of_them, strict=True))


def _random_rings(record: DrafterRecord, random: np.random.Generator) -> ContextRings:
    limits = record.limits
    rings = ContextRings(2 * record.layers, limits.max_slots, limits.window, record.kv_heads, record.head_size)
    for pool in rings.pools:
        pool[:] = random.standard_normal(pool.shape, np.float32)
    return rings


def _block_run(graphs: DrafterGraphs, limits: DrafterLimits, random: np.random.Generator) -> Run:
    count = limits.max_slots
    inputs = (
        random.permutation(count).astype(np.int32),
        random.integers(0, limits.vocabulary_size, count, dtype=np.int32),
        random.integers(limits.window, 4 * limits.window, count, dtype=np.int32),
        random.integers(1, limits.window + 1, count, dtype=np.int32),
        np.resize(np.array([0.0, 0.3, 1.0], np.float32), count),
        random.random((count, limits.block_size), np.float32),
        random.integers(-(2**31), 2**31, (count, limits.block_size), np.int32),
        np.resize(np.array([False, True, True, False]), count),
    )
    return lambda rows: list(astuple(graphs.block([values[rows] for values in inputs])))


def _context_run(graphs: DrafterGraphs, limits: DrafterLimits, random: np.random.Generator) -> Run:
    features = random.standard_normal((CONTEXT_ROWS, limits.feature_size), np.float32)
    positions = np.arange(CONTEXT_ROWS, dtype=np.int32)
    return lambda rows: list(graphs.context(features[rows], positions[rows]))
