"""The drafter on TensorRT-LLM: one engine that appends context to a paged KV pool and drafts in the same run.

A slot's sequence is its context rows, then the gamma rows of the block; attention is bidirectional, so a block row sees
all context and its whole block. K and V of context rows come from features alone, so what attention gives those rows is
void. The next step's context overwrites the block's rows. The drafter is not told when a sequence ends, so every slot
owns its blocks for good. Never run on a GPU: see docs/gpu.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dspark.engines.contract import DrafterResult, DrafterStep, Int32
from dspark.engines.drafter_checks import check_drafter_step
from dspark.engines.engine_json import read_record
from dspark.engines.rows import begins
from dspark.engines.tensorrt_llm_packing import Feed, Packed, Segment, attention_feeds, pack
from dspark.engines.tensorrt_llm_record import TensorRtLlmDrafterRecord
from dspark.engines.tensorrt_llm_session import Array, Session, TensorRtLlmSession


class TensorRtLlmDrafter:
    """A loaded drafter engine (contract.DrafterEngine).

    Raises ConfigurationError when TensorRT-LLM, the GPU, its free memory or the folder are not what the engine needs.
    """

    def __init__(self, folder: Path) -> None:
        record = read_record(folder, TensorRtLlmDrafterRecord)
        self._start(record, TensorRtLlmSession(folder, record))

    @classmethod
    def over(cls, record: TensorRtLlmDrafterRecord, session: Session) -> TensorRtLlmDrafter:
        """An engine over a session that is loaded already."""
        engine = cls.__new__(cls)
        engine._start(record, session)
        return engine

    def step(self, step: DrafterStep) -> DrafterResult:
        """Append the step's context and draft a block for the requests that want one (dspark-spec, section 2).

        Raises EngineError when the step contradicts the limits or what the slots hold (nothing has changed then), and
        when the runtime fails (the step's slots then hold what preceded it).
        """
        check_drafter_step(step, self.limits, self._lengths)
        shape = step.uniforms.shape
        result = DrafterResult(
            tokens=np.zeros(shape, np.int32),
            confidence_logits=np.full(shape, np.nan, np.float32),
            draft_ids=np.zeros((*shape, self.limits.candidates), np.int32),
            draft_probs=np.zeros((*shape, self.limits.candidates), np.float32),
        )
        self._lengths[step.slots] = step.positions - step.context_counts
        for run in pack(self._segments(step), self.record.shape.max_tokens):
            self._run(step, run, result)
        self._lengths[step.slots] = step.positions
        return result

    def close(self) -> None:
        """Let go of engine and KV pool; the engine cannot be used afterwards."""
        self._session.close()

    def _start(self, record: TensorRtLlmDrafterRecord, session: Session) -> None:
        self.record, self._session = record, session
        self.limits = record.limits
        self._lengths: Int32 = np.zeros(self.limits.max_slots, np.int32)     # positions seen

    def _segments(self, step: DrafterStep) -> list[Segment]:
        segments = []
        for r, (count, drafts) in enumerate(zip(step.context_counts, step.drafts, strict=True)):
            segments.append(Segment(r, 0, int(count)))
            if drafts:
                segments.append(Segment(r, int(count), self.limits.block_size, whole=True))
        return segments

    def _run(self, step: DrafterStep, run: Packed, result: DrafterResult) -> None:
        """Run a stretch of the step and write what it drafted into `result`."""
        requests, counts = np.array(run.requests), np.array(run.counts, np.int32)
        offsets = np.arange(counts.sum()) - np.repeat(begins(counts)[:-1], counts) + np.repeat(run.firsts, counts)
        row_requests = np.repeat(requests, counts)
        is_context = offsets < step.context_counts[row_requests]
        anchors = offsets == step.context_counts[row_requests]               # a block's first row
        tokens = np.where(anchors, step.anchors[row_requests], self.record.mask_token_id)
        features = np.zeros((tokens.size, self.limits.feature_size), np.float32)
        sources = begins(step.context_counts)[row_requests] + offsets
        features[is_context] = step.context[sources[is_context]]
        first_rows = np.flatnonzero(anchors)
        drafting = row_requests[first_rows]
        outputs = self._session.run(
            [
                Feed("input_ids", tokens),
                Feed("is_context", is_context),
                Feed("features", features),
                *self._block_feeds(step, first_rows, drafting),
                *self._attention(step, requests, np.array(run.firsts), counts),
            ]
        )
        self._keep(outputs, drafting, result)

    def _block_feeds(self, step: DrafterStep, first_rows: Array, drafting: Array) -> list[Feed]:
        """The blocks of a run, or one that means nothing: an optimisation profile begins at 1."""
        if drafting.size == 0:
            first_rows, drafting = np.zeros(1, np.int64), np.zeros(1, np.int64)
            block_rows = np.zeros((1, self.limits.block_size), np.int64)
        else:
            block_rows = first_rows[:, None] + np.arange(self.limits.block_size)
        return [
            Feed("block_rows", block_rows),
            Feed("anchors", step.anchors[drafting]),
            Feed("temperatures", step.temperatures[drafting]),
            Feed("uniforms", step.uniforms[drafting]),
        ]

    def _attention(self, step: DrafterStep, requests: Array, firsts: Array, counts: Int32) -> list[Feed]:
        starts = step.positions - step.context_counts
        pasts = (starts[requests] + firsts).astype(np.int32)
        blocks = self.record.shape.blocks_per_sequence
        tables = [np.arange(blocks, dtype=np.int32) + blocks * slot for slot in step.slots[requests]]
        return attention_feeds(self.record.shape, self._session.pool, pasts, counts, tables)

    def _keep(self, outputs: list[Array], drafting: Array, result: DrafterResult) -> None:
        kept = dict(zip((tensor.name for tensor in self.record.outputs), outputs, strict=True))
        for name, array in kept.items():
            getattr(result, name)[drafting] = array[: drafting.size]
