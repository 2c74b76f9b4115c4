"""The target on OpenVINO's CPU plugin: paged attention over a KV pool, acceptance beside the logits."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from dspark.engines.contract import Int32, TargetResult, TargetStep
from dspark.engines.engine_json import REBUILD, TargetRecord, read_record
from dspark.engines.machine import cpu_model
from dspark.engines.paged_graph import GraphOutputs
from dspark.engines.paged_runner import PagedRunner, RaggedBatch
from dspark.engines.rows import NO_RULES, begins
from dspark.engines.selection import Selection, committed_features, select
from dspark.engines.step_checks import check_target_step
from dspark.engines.warm_up import blank_step
from dspark.verification import SamplingSettings, log_probs_of, verify_block, verify_block_coupled

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
        capacity = self.limits.max_context + self.limits.spare_tokens
        self._history = np.zeros((self.limits.max_slots, capacity), np.int32)
        self._committed = np.zeros(self.limits.max_slots, np.int32)
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
        check_target_step(step, self.limits, self._committed)
        self._release(step.released)
        if step.slots.size == 0:
            return self._nothing(step)
        selection = select(step)
        batch = RaggedBatch(step.slots, step.positions, step.token_counts, step.tokens)
        outputs = self._runner.run(batch, selection.logit_tokens, selection.feature_tokens)
        self._remember(step)
        return self._decide(step, selection, outputs)

    def close(self) -> None:
        """Let go of graph and KV pool; the engine cannot be used afterwards."""
        del self._runner

    def _release(self, slots: Int32) -> None:
        for slot in slots:
            self._runner.blocks.release(int(slot))
        self._committed[slots] = 0

    def _remember(self, step: TargetStep) -> None:
        """Write the step's tokens to their slots' histories, which the repetition penalty looks at."""
        self._committed[step.slots] = step.positions
        first = begins(step.token_counts)
        for r, slot in enumerate(step.slots):
            start = step.positions[r]
            self._history[slot, start : start + step.token_counts[r]] = step.tokens[first[r] : first[r + 1]]

    def _decide(self, step: TargetStep, selection: Selection, outputs: GraphOutputs) -> TargetResult:
        """Accept a prefix of every request's drafts (dspark-spec, section 6); keep the committed tokens' features."""
        accepted = np.zeros(step.slots.size, np.int32)
        next_tokens = np.full(step.slots.size, -1, np.int32)
        log_probs = np.full(step.uniforms.shape, np.nan, np.float32)
        first_logit, first_draft = begins(selection.logit_counts), begins(step.draft_counts)
        for r in np.flatnonzero(step.samples):
            logits = outputs.logits[first_logit[r] : first_logit[r + 1]]
            distributions = slice(first_draft[r], first_draft[r + 1])
            end = step.positions[r] + step.token_counts[r]
            history, drafts = np.split(self._history[step.slots[r], :end], [end - step.draft_counts[r]])
            sampling = SamplingSettings.row(step.sampling, r)
            if step.coupled[r]:
                verdict = verify_block_coupled(logits, drafts, sampling, history, step.noise_keys[r])
            else:
                p_draft = step.draft_ids[distributions], step.draft_probs[distributions]
                verdict = verify_block(logits, drafts, *p_draft, sampling, history, step.uniforms[r])
            accepted[r], next_tokens[r] = verdict.accepted, verdict.next_token
            if step.wants_log_probs[r]:
                emitted = np.append(drafts[: verdict.accepted], next_tokens[r])
                log_probs[r, : emitted.size] = log_probs_of(logits[: emitted.size], emitted)
        committed = step.token_counts - step.draft_counts + accepted
        self._committed[step.slots] = step.positions + committed
        feature_counts = np.where(step.wants_features, committed, 0).astype(np.int32)
        features = committed_features(outputs.features, selection, feature_counts)
        return TargetResult(accepted, next_tokens, feature_counts, features, log_probs)

    def _nothing(self, step: TargetStep) -> TargetResult:
        """The result of a step that only releases slots."""
        none = np.zeros(0, np.int32)
        features = np.zeros((0, self.limits.hidden_size), np.float32)
        return TargetResult(none, none, none, features, np.zeros(step.uniforms.shape, np.float32))

    def _warm_up(self) -> None:
        """Run the usual sizes once: the first call of a shape prepares kernels, which takes 0.1 to 1 s."""
        most = min(self.limits.max_slots, self.limits.kv_blocks)
        for sequences in (count for count in WARM_UP_SEQUENCES if count <= most):
            for tokens in (1, 1 + self.limits.max_draft_tokens):
                self.step(blank_step(sequences, tokens))
        self._release(np.arange(self.limits.max_slots, dtype=np.int32))
