"""Does an engine give a token the same logits whatever shares its step? Measured, because kernels differ by CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from dspark.engines.contract import Float32, Int32
from dspark.engines.engine_json import TargetRecord
from dspark.engines.paged_runner import PagedRunner, RaggedBatch
from dspark.engines.rows import ATTENTION_PADDING, TOKEN_PADDING, RowRules

PROBE_SEED = 20_260_705
PROBE_TOKENS = 128
CHUNK = 8                            # the reference steps by so many tokens
NEIGHBOURS = 7
NEIGHBOUR_CHUNKS = (1, 1, 1, 2, 3, 5, 8, 8, 40)
ROW_LIMITS = (128, 64, 32, 16)       # tried from the quickest to the safest


class Probe:
    """One engine's logits of a fixed random sequence, stepped in many ways over a pool of its own."""

    def __init__(self, folder: Path, record: TargetRecord, rules: RowRules, seed: int = PROBE_SEED) -> None:
        blocks = (NEIGHBOURS + 1) * (PROBE_TOKENS // record.limits.kv_block_size + 2)
        limits = replace(record.limits, max_slots=NEIGHBOURS + 1, kv_blocks=blocks)
        self.runner = PagedRunner(folder, replace(record, limits=limits), rules)
        self._vocabulary = record.limits.vocabulary_size
        self._random = np.random.default_rng(seed)
        self._sequence = self._random.integers(0, self._vocabulary, PROBE_TOKENS, dtype=np.int32)

    def first_difference(self) -> float:
        """The first difference from the reference, chunks of 8 tokens, that any other stepping shows; 0.0: exact.

        The other ways: one token at a time, every number of tokens at once, and chunks of random size among
        neighbours that also take random chunks, with logits asked for at random rows.
        """
        reference = self._alone(CHUNK)
        return next((difference for difference in self._differences(reference) if difference), 0.0)

    def _differences(self, reference: Float32) -> Iterator[float]:
        for chunk in (PROBE_TOKENS, 1, 2):
            yield _largest(self._alone(chunk), reference)
        for count in range(2, self.runner.rules.max_rows_per_run + 1):
            yield _largest(self._run_alone(0, count), reference[:count])
        for neighbours in (1, 3, NEIGHBOURS):
            for at, logits in self._in_company(neighbours):
                yield _largest(logits, reference[at])

    def _alone(self, chunk: int) -> Float32:
        return np.concatenate([self._run_alone(start, chunk) for start in range(0, PROBE_TOKENS, chunk)])

    def _run_alone(self, start: int, count: int) -> Float32:
        tokens = self._sequence[start : start + count]
        batch = RaggedBatch(_ints(0), _ints(start), _ints(tokens.size), tokens)
        return self.runner.run(batch, np.arange(tokens.size, dtype=np.int32), _ints()).logits.copy()

    def _in_company(self, neighbours: int) -> Iterator[tuple[Int32, Float32]]:
        """Positions of the sequence and their logits, when it shares its steps with neighbours before and after it."""
        position, seat = 0, neighbours // 2
        while position < PROBE_TOKENS:
            counts = self._random.choice(NEIGHBOUR_CHUNKS, neighbours + 1).astype(np.int32)
            counts[seat] = min(self._random.integers(1, 9), PROBE_TOKENS - position)
            tokens = self._random.integers(0, self._vocabulary, counts.sum(), dtype=np.int32)
            first = int(counts[:seat].sum())
            tokens[first : first + counts[seat]] = self._sequence[position : position + counts[seat]]
            positions = np.zeros(neighbours + 1, np.int32)
            positions[seat] = position
            kept = np.flatnonzero(self._random.random(counts[seat]) < 0.7).astype(np.int32)
            strangers = np.flatnonzero(self._random.random(first) < 0.3).astype(np.int32)
            batch = RaggedBatch(np.arange(neighbours + 1, dtype=np.int32), positions, counts, tokens)
            outputs = self.runner.run(batch, np.concatenate([strangers, first + kept]).astype(np.int32), _ints())
            yield position + kept, outputs.logits[strangers.size :].copy()
            position += int(counts[seat])


def exact_settings(folder: Path, record: TargetRecord) -> tuple[TargetRecord, dict[str, float]]:
    """The record with the cheapest settings under which logits do not depend on the batch, and the failures before.

    The record comes back with `exact` false when no settings do it.
    """
    differences = {}
    for quantise in (True, False) if record.quantise_activations else (False,):
        candidate = replace(record, quantise_activations=quantise)
        probe = Probe(folder, candidate, record.rows)
        for padding in (ATTENTION_PADDING, TOKEN_PADDING):
            for limit in ROW_LIMITS:
                probe.runner.rules = replace(record.rows, padding=padding, max_rows_per_run=limit)
                difference = probe.first_difference()
                if difference == 0.0:
                    return replace(candidate, rows=probe.runner.rules, exact=True), differences
                name = f"{padding} padding, {limit} rows" + ("" if quantise else ", activations not quantised")
                differences[name] = difference
    return record, differences


def _largest(logits: Float32, reference: Float32) -> float:
    return float(np.abs(logits - reference).max(initial=0.0))


def _ints(*values: int) -> Int32:
    return np.array(values, np.int32)
