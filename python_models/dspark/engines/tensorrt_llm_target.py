"""The target on TensorRT-LLM: packed rows over a paged KV pool; acceptance on the host.

Rows of logits that were asked for come to the host, where `decision.SlotTokens` decides, the same as on every engine.
Never run on a GPU: see docs/gpu.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dspark.engines.contract import Float32, Int32, TargetResult, TargetStep
from dspark.engines.decision import SlotTokens
from dspark.engines.engine_json import read_record
from dspark.engines.kv_blocks import KvBlocks, SlotDemand
from dspark.engines.rows import begins
from dspark.engines.selection import select
from dspark.engines.step_checks import check_target_step
from dspark.engines.tensorrt_llm_packing import Feed, Packed, Segment, attention_feeds, pack
from dspark.engines.tensorrt_llm_record import TensorRtLlmTargetRecord
from dspark.engines.tensorrt_llm_session import Session, TensorRtLlmSession
from dspark.engines.warm_up import blank_step


class TensorRtLlmTarget:
    """A loaded target engine (contract.TargetEngine).

    Raises ConfigurationError when TensorRT-LLM, the GPU, its free memory or the folder are not what the engine needs.
    """

    def __init__(self, folder: Path) -> None:
        record = read_record(folder, TensorRtLlmTargetRecord)
        self._start(record, TensorRtLlmSession(folder, record))

    @classmethod
    def over(cls, record: TensorRtLlmTargetRecord, session: Session) -> TensorRtLlmTarget:
        """An engine over a session that is loaded already."""
        engine = cls.__new__(cls)
        engine._start(record, session)
        return engine

    @property
    def free_blocks(self) -> int:
        """KV blocks that no slot holds."""
        return self._blocks.free

    def step(self, step: TargetStep) -> TargetResult:
        """Run one step (contract.TargetStep).

        Raises EngineError when the step contradicts the limits or the KV pool is exhausted (slots are then as they
        were, but for the released ones), and when the runtime fails (the step's slots then hold what preceded it).
        """
        check_target_step(step, self.limits, self._slots.committed)
        self._release(step.released)
        if step.slots.size == 0:
            return self._slots.nothing(step)
        selection = select(step)
        self._blocks.reserve(_demands(step))
        self._slots.remember(step)
        logits, features = self._run(step, selection.logit_tokens, selection.feature_tokens)
        return self._slots.decide(step, selection, logits, features)

    def close(self) -> None:
        """Let go of engine and KV pool; the engine cannot be used afterwards."""
        self._session.close()

    def _start(self, record: TensorRtLlmTargetRecord, session: Session) -> None:
        self.record, self._session = record, session
        self.limits = record.limits
        self._blocks = KvBlocks(self.limits.kv_blocks, self.limits.kv_block_size, self.limits.max_slots)
        self._slots = SlotTokens(self.limits)
        self.step(blank_step(1, 1 + self.limits.max_draft_tokens))
        self._release(np.zeros(1, np.int32))

    def _run(self, step: TargetStep, logit_tokens: Int32, feature_tokens: Int32) -> tuple[Float32, Float32]:
        """Logits and features of some of the step's T tokens, both lists ascending."""
        begin = begins(step.token_counts)
        segments = [Segment(r, 0, int(count)) for r, count in enumerate(step.token_counts)]
        logits, features = [], []
        for run in pack(segments, self.record.shape.max_tokens):
            tokens = np.concatenate(
                [np.arange(first, first + n) + begin[r]
                 for r, first, n in zip(run.requests, run.firsts, run.counts, strict=True)]
            )
            logit_rows = np.flatnonzero(np.isin(tokens, logit_tokens))
            feature_rows = np.flatnonzero(np.isin(tokens, feature_tokens))
            outputs = self._session.run(
                [
                    Feed("input_ids", step.tokens[tokens]),
                    Feed("logit_rows", _at_least_one(logit_rows)),
                    Feed("feature_rows", _at_least_one(feature_rows)),
                    *self._attention(step, run),
                ]
            )
            logits.append(outputs[0][: logit_rows.size])
            features.append(outputs[1][: feature_rows.size])
        return np.concatenate(logits), np.concatenate(features)

    def _attention(self, step: TargetStep, run: Packed) -> list[Feed]:
        requests, counts = np.array(run.requests), np.array(run.counts, np.int32)
        pasts = (step.positions[requests] + np.array(run.firsts)).astype(np.int32)
        tables = [
            self._blocks.table(int(slot), int(length))
            for slot, length in zip(step.slots[requests], pasts + counts, strict=True)
        ]
        return attention_feeds(self.record.shape, self._session.pool, pasts, counts, tables)

    def _release(self, slots: Int32) -> None:
        for slot in slots:
            self._blocks.release(int(slot))
        self._slots.committed[slots] = 0


def _demands(step: TargetStep) -> list[SlotDemand]:
    return [
        SlotDemand(int(slot), int(position + count), bool(position == 0))
        for slot, position, count in zip(step.slots, step.positions, step.token_counts, strict=True)
    ]


def _at_least_one(rows: Int32) -> Int32:
    """Rows to gather, or row 0 where none are wanted: an optimisation profile begins at 1."""
    return (rows if rows.size else np.zeros(1)).astype(np.int32)
