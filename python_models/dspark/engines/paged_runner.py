"""Ragged batches through the paged graph: block tables, row rules, and logits and features where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dspark.engines.contract import Int32
from dspark.engines.engine_json import TargetRecord
from dspark.engines.kv_blocks import KvBlocks, SlotDemand
from dspark.engines.paged_graph import GraphOutputs, PagedGraph
from dspark.engines.rows import RowPlan, RowRules, begins, padded, plan_rows


@dataclass(frozen=True)
class RaggedBatch:
    """New tokens of R sequences; sequence r continues (or rewinds) its slot at `positions[r]`, 0 starts it afresh."""

    slots: Int32                     # [R] distinct
    positions: Int32                 # [R]
    token_counts: Int32              # [R] >= 1
    tokens: Int32                    # [T]


@dataclass(frozen=True)
class _Run:
    """A stretch of a batch's tokens that goes through the graph at once."""

    batch: RaggedBatch
    plan: RowPlan
    first: int                       # its first token in the whole batch

    def own(self, tokens: Int32) -> Int32:
        """Those of the whole batch's `tokens` (ascending) that are in this run, counted from its first."""
        start, stop = np.searchsorted(tokens, [self.first, self.first + self.batch.tokens.size])
        return tokens[start:stop] - self.first


class PagedRunner:
    """The graph and the block tables of its KV pool. Raises ConfigurationError when the folder cannot be loaded."""

    def __init__(self, folder: Path, record: TargetRecord, rules: RowRules, threads: int = 0) -> None:
        limits = record.limits
        self.rules = rules
        self.blocks = KvBlocks(limits.kv_blocks, limits.kv_block_size, limits.max_slots)
        self._graph = PagedGraph(folder, record, threads)

    def run(self, batch: RaggedBatch, logit_tokens: Int32, feature_tokens: Int32) -> GraphOutputs:
        """Write the batch's keys and values to the pool and return logits and features of some of its T tokens.

        Both lists ascend. The outputs may be views that the next call overwrites. Raises EngineError, with the tables
        unchanged, when the pool is exhausted; and when OpenVINO fails.
        """
        runs = list(self._split(batch))
        self.blocks.reserve(_demands(batch, runs))
        if len(runs) == 1:
            return self._run(runs[0], logit_tokens, feature_tokens)
        parts = [self._run(run, run.own(logit_tokens), run.own(feature_tokens)).copy() for run in runs]
        return GraphOutputs(
            np.concatenate([part.logits for part in parts]), np.concatenate([part.features for part in parts])
        )

    def _split(self, batch: RaggedBatch) -> Iterator[_Run]:
        """Cut the batch into runs that the rules allow; a sequence may continue in the next run."""
        limit = self.rules.max_tokens_per_run or batch.tokens.size
        ends = np.cumsum(batch.token_counts)
        for start in range(0, batch.tokens.size, limit):
            stop = min(start + limit, batch.tokens.size)
            first = np.maximum(ends - batch.token_counts, start)
            counts = (np.minimum(ends, stop) - first).astype(np.int32)
            present = counts > 0
            skipped = first - (ends - batch.token_counts)
            positions = (batch.positions + skipped).astype(np.int32)[present]
            part = RaggedBatch(batch.slots[present], positions, counts[present], batch.tokens[start:stop])
            yield _Run(part, plan_rows(part.positions, part.token_counts, self.rules), start)

    def _run(self, run: _Run, logit_tokens: Int32, feature_tokens: Int32) -> GraphOutputs:
        batch, plan = run.batch, run.plan
        lengths = batch.positions + plan.attention_counts
        tables = [
            self.blocks.table(int(slot), int(length)) for slot, length in zip(batch.slots, lengths, strict=True)
        ]
        outputs = self._graph.run(
            {
                "tokens": batch.tokens[plan.token_of_row].astype(np.int64),
                "positions": plan.position_of_row,
                "logit_rows": padded(plan.row_of_token[logit_tokens], self.rules),
                "feature_rows": padded(plan.row_of_token[feature_tokens], self.rules),
                "attention_rows": plan.attention_rows,
                "output_rows": plan.output_rows,
                "past_lens": np.ascontiguousarray(batch.positions),
                "subsequence_begins": begins(plan.attention_counts),
                "block_indices": np.concatenate(tables),
                "block_indices_begins": begins([table.size for table in tables]),
                "max_context_len": np.array(lengths.max(), np.int32),
            }
        )
        return GraphOutputs(outputs.logits[: logit_tokens.size], outputs.features[: feature_tokens.size])


def _demands(batch: RaggedBatch, runs: list[_Run]) -> list[SlotDemand]:
    """How many tokens each slot must hold: up to the last row that any run writes, padding included."""
    lengths = {int(slot): 0 for slot in batch.slots}
    for run in runs:
        written = run.batch.positions + run.plan.attention_counts
        for slot, length in zip(run.batch.slots, written, strict=True):
            lengths[int(slot)] = max(lengths[int(slot)], int(length))
    return [
        SlotDemand(int(slot), lengths[int(slot)], bool(position == 0))
        for slot, position in zip(batch.slots, batch.positions, strict=True)
    ]
