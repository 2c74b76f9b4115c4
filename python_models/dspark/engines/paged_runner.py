"""Ragged batches through the paged graph: block tables, padding, and logits and features where they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dspark.engines.contract import Int32
from dspark.engines.engine_json import TargetRecord
from dspark.engines.kv_blocks import KvBlocks, SlotDemand
from dspark.engines.paged_graph import GraphOutputs, PagedGraph
from dspark.engines.rows import at_least_two, begins, plan_rows


@dataclass(frozen=True)
class RaggedBatch:
    """New tokens of R sequences; sequence r continues (or rewinds) its slot at `positions[r]`, 0 starts it afresh."""

    slots: Int32                     # [R] distinct
    positions: Int32                 # [R]
    token_counts: Int32              # [R] >= 1
    tokens: Int32                    # [T]


class PagedRunner:
    """The graph and the block tables of its KV pool. Raises ConfigurationError when the folder cannot be loaded."""

    def __init__(self, folder: Path, record: TargetRecord, padding: str, threads: int = 0) -> None:
        limits = record.limits
        self.padding = padding
        self.blocks = KvBlocks(limits.kv_blocks, limits.kv_block_size, limits.max_slots)
        self._graph = PagedGraph(folder, record, threads)

    def run(self, batch: RaggedBatch, logit_tokens: Int32, feature_tokens: Int32) -> GraphOutputs:
        """Write the batch's keys and values to the pool and return logits and features of some of its T tokens.

        The outputs are views that the next run overwrites. Raises EngineError, with the tables unchanged, when the
        pool is exhausted; and when OpenVINO fails.
        """
        plan = plan_rows(batch.positions, batch.token_counts, self.padding)
        lengths = batch.positions + plan.attention_counts
        demands = [
            SlotDemand(int(slot), int(length), bool(position == 0))
            for slot, position, length in zip(batch.slots, batch.positions, lengths, strict=True)
        ]
        self.blocks.reserve(demands)
        tables = [self.blocks.table(demand.slot, demand.tokens) for demand in demands]
        outputs = self._graph.run(
            {
                "tokens": batch.tokens[plan.token_of_row].astype(np.int64),
                "positions": plan.position_of_row,
                "logit_rows": at_least_two(plan.row_of_token[logit_tokens], self.padding),
                "feature_rows": at_least_two(plan.row_of_token[feature_tokens], self.padding),
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
