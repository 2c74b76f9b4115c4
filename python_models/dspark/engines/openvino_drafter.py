"""The drafter on OpenVINO's CPU plugin: context K/V in rings, the block drafted and sampled inside one graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dspark.engines.context_rings import ContextRings
from dspark.engines.contract import DrafterResult, DrafterStep
from dspark.engines.drafter_checks import check_drafter_step
from dspark.engines.drafter_graphs import DrafterGraphs
from dspark.engines.drafter_record import DrafterRecord
from dspark.engines.engine_json import read_record


class OpenVinoDrafter:
    """A loaded drafter engine (contract.DrafterEngine). Raises ConfigurationError when the folder cannot be loaded."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        self.record = read_record(folder, DrafterRecord)
        self.limits = self.record.limits
        self._rings = ContextRings(
            2 * self.record.layers,
            self.limits.max_slots,
            self.limits.window,
            self.record.kv_heads,
            self.record.head_size,
        )
        self._graphs = DrafterGraphs(folder, self.record, self._rings.pools, threads)
        self._warm_up()

    def step(self, step: DrafterStep) -> DrafterResult:
        """Append the step's context and draft a block for the requests that want one (dspark-spec, section 2).

        Raises EngineError when the step contradicts the limits or what the slots hold (nothing has changed then), and
        when OpenVINO fails (the step's slots may then have their new context).
        """
        check_drafter_step(step, self.limits, self._rings.lengths)
        self._append_context(step)
        return self._draft(step)

    def close(self) -> None:
        """Let go of graphs and rings; the engine cannot be used afterwards."""
        del self._graphs, self._rings

    def _append_context(self, step: DrafterStep) -> None:
        rows = self._rings.plan(step)
        if rows.sources.size:
            self._rings.write(rows, self._graphs.context(step.context[rows.sources], rows.positions))
        self._rings.lengths[step.slots] = step.positions

    def _draft(self, step: DrafterStep) -> DrafterResult:
        shape = step.uniforms.shape
        result = DrafterResult(
            tokens=np.zeros(shape, np.int32),
            confidence_logits=np.full(shape, np.nan, np.float32),
            draft_ids=np.zeros((*shape, self.limits.candidates), np.int32),
            draft_probs=np.zeros((*shape, self.limits.candidates), np.float32),
        )
        wanted = np.flatnonzero(step.drafts)
        if wanted.size == 0:
            return result
        slots = step.slots[wanted]
        drafted = self._graphs.block(
            (
                slots,
                step.anchors[wanted],
                step.positions[wanted],
                self._rings.valid_rows(slots),
                step.temperatures[wanted],
                step.uniforms[wanted],
                step.noise_keys[wanted],
                step.coupled[wanted],
            )
        )
        result.tokens[wanted] = drafted.tokens
        result.confidence_logits[wanted] = drafted.confidence_logits
        result.draft_ids[wanted] = drafted.draft_ids
        result.draft_probs[wanted] = drafted.draft_probs
        return result

    def _warm_up(self) -> None:
        """Run every size of a run once: the first call of a shape prepares kernels, which takes a while."""
        for requests in range(1, 1 + min(self.record.requests_per_run.most, self.limits.max_slots)):
            ones = np.ones(requests, np.int32)
            self.step(
                DrafterStep(
                    slots=np.arange(requests, dtype=np.int32),
                    anchors=0 * ones,
                    positions=ones,
                    context_counts=ones,
                    drafts=ones.astype(np.bool_),
                    context=np.zeros((requests, self.limits.feature_size), np.float32),
                    temperatures=np.zeros(requests, np.float32),
                    uniforms=np.zeros((requests, self.limits.block_size), np.float32),
                    noise_keys=np.zeros((requests, self.limits.block_size), np.int32),
                    coupled=np.zeros(requests, np.bool_),
                )
            )
        self._rings.lengths[:] = 0
