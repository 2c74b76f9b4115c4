"""The target on OpenVINO's CPU plugin: paged attention over a KV pool, acceptance beside the logits."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from dspark.engines.contract import Int32, TargetResult, TargetStep
from dspark.engines.decision import SlotTokens
from dspark.engines.engine_json import REBUILD, TargetRecord, read_record
from dspark.engines.machine import cpu_model
from dspark.engines.paged_runner import PagedRunner, RaggedBatch
from dspark.engines.rows import NO_RULES
from dspark.engines.selection import select
from dspark.engines.step_checks import check_target_step
from dspark.engines.warm_up import blank_step

_log = logging.getLogger(__name__)

WARM_UP_SEQUENCES = (1, 2, 4, 8, 16, 32)


class OpenVinoTarget:
    """A loaded target engine (contract.TargetEngine). Raises ConfigurationError when the folder cannot be loaded."""

    def __init__(self, folder: Path, threads: int = 0, exact: bool = True) -> None:
        self.record = read_record(folder, TargetRecord)
        self.limits = self.record.limits
        if exact and cpu_model() != self.record.facts.cpu:
            _log.warning(
                "%s was probed on %r, this is %r: plain and speculative decoding may differ in a near tie; %s",
                folder, self.record.facts.cpu, cpu_model(), REBUILD,
            )
        self._runner = PagedRunner(folder, self.record, self.record.rows if exact else NO_RULES, threads)
        self._slots = SlotTokens(self.limits)
        self._warm_up()

    @property
    def free_blocks(self) -> int:
        """KV blocks that no slot holds."""
        return self._runner.blocks.free

    def step(self, step: TargetStep) -> TargetResult:
        """Run one step (contract.TargetStep).

        Raises EngineError when the step contradicts the limits or the KV pool is exhausted (slots are then as they
        were, but for the released ones), and when OpenVINO fails (the step's slots then hold what preceded it).
        """
        check_target_step(step, self.limits, self._slots.committed)
        self._release(step.released)
        if step.slots.size == 0:
            return self._slots.nothing(step)
        selection = select(step)
        batch = RaggedBatch(step.slots, step.positions, step.token_counts, step.tokens)
        outputs = self._runner.run(batch, selection.logit_tokens, selection.feature_tokens)
        self._slots.remember(step)
        return self._slots.decide(step, selection, outputs.logits, outputs.features)

    def close(self) -> None:
        """Let go of graph and KV pool; the engine cannot be used afterwards."""
        del self._runner

    def _release(self, slots: Int32) -> None:
        for slot in slots:
            self._runner.blocks.release(int(slot))
        self._slots.committed[slots] = 0

    def _warm_up(self) -> None:
        """Run the usual sizes once: the first call of a shape prepares kernels, which takes 0.1 to 1 s."""
        most = min(self.limits.max_slots, self.limits.kv_blocks)
        for sequences in (count for count in WARM_UP_SEQUENCES if count <= most):
            for tokens in (1, 1 + self.limits.max_draft_tokens):
                self.step(blank_step(sequences, tokens))
        self._release(np.arange(self.limits.max_slots, dtype=np.int32))
