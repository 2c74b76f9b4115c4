"""Does an engine give a token the same logits whatever shares its step? Measured, because kernels differ by CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from dspark.engines.contract import Float32, Int32, TargetLimits
from dspark.engines.paged_runner import PagedRunner, RaggedBatch

PROBE_SEED = 20_260_705
PROBE_TOKENS = 96
NEIGHBOURS = 7
LONGEST_NEIGHBOUR_CHUNK = 64


def probe_limits(limits: TargetLimits) -> TargetLimits:
    """Limits under which the probe runs: a pool of its own size, so that any engine can be probed."""
    blocks = (NEIGHBOURS + 1) * (PROBE_TOKENS // limits.kv_block_size + 1)
    return replace(limits, max_slots=NEIGHBOURS + 1, kv_blocks=blocks)


def largest_logit_difference(runner: PagedRunner, vocabulary_size: int, seed: int = PROBE_SEED) -> float:
    """Largest difference between logits of one sequence in steps of 8 tokens and in every other way of stepping.

    The other ways: the whole sequence at once, single tokens, two at a time, and random chunks among neighbours that
    also take random chunks, with logits asked for at random rows. 0.0 means bit-identical. The runner's engine needs
    the limits that `probe_limits` gives.
    """
    random = np.random.default_rng(seed)
    sequence = random.integers(0, vocabulary_size, PROBE_TOKENS, dtype=np.int32)
    reference = _alone(runner, sequence, 8)
    differences = [np.abs(_alone(runner, sequence, chunk) - reference).max() for chunk in (PROBE_TOKENS, 1, 2)]
    for neighbours in (1, NEIGHBOURS):
        for at, logits in _in_company(runner, sequence, neighbours, vocabulary_size, random):
            differences.append(np.abs(logits - reference[at]).max())
    return float(max(differences))


def _alone(runner: PagedRunner, sequence: Int32, chunk: int) -> Float32:
    logits = []
    for start in range(0, sequence.size, chunk):
        part = sequence[start : start + chunk]
        batch = RaggedBatch(_ints(0), _ints(start), _ints(part.size), part)
        logits.append(runner.run(batch, np.arange(part.size, dtype=np.int32), _ints()).logits.copy())
    return np.concatenate(logits)


def _in_company(
    runner: PagedRunner, sequence: Int32, neighbours: int, vocabulary_size: int, random: np.random.Generator
) -> Iterator[tuple[Int32, Float32]]:
    """Positions of `sequence` and their logits, when it shares its steps with neighbours before and after it."""
    position, seat = 0, neighbours // 2
    while position < sequence.size:
        counts = random.choice([1, 1, 2, 3, 5, 8, LONGEST_NEIGHBOUR_CHUNK], neighbours + 1).astype(np.int32)
        counts[seat] = min(random.integers(1, 9), sequence.size - position)
        tokens = random.integers(0, vocabulary_size, counts.sum(), dtype=np.int32)
        first = int(counts[:seat].sum())
        tokens[first : first + counts[seat]] = sequence[position : position + counts[seat]]
        positions = np.zeros(neighbours + 1, np.int32)
        positions[seat] = position
        kept = np.flatnonzero(random.random(counts[seat]) < 0.7).astype(np.int32)
        strangers = np.flatnonzero(random.random(first) < 0.3).astype(np.int32)
        batch = RaggedBatch(np.arange(neighbours + 1, dtype=np.int32), positions, counts, tokens)
        outputs = runner.run(batch, np.concatenate([strangers, first + kept]).astype(np.int32), _ints())
        if kept.size:
            yield position + kept, outputs.logits[strangers.size :].copy()
        position += int(counts[seat])


def _ints(*values: int) -> Int32:
    return np.array(values, np.int32)
