"""The target on TensorRT: a linear KV cache a slot, updated in place by the plan; acceptance on the host.

Only the rows of logits that were asked for leave the GPU (up to gamma + 1 rows of V a request). The decision is
`decision.SlotTokens`, the same as on every engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dspark.engines.contract import Float32, TargetResult, TargetStep
from dspark.engines.cuda_runtime import CudaStream, find_device
from dspark.engines.decision import SlotTokens
from dspark.engines.engine_json import read_record
from dspark.engines.padded_runs import PaddedRun, padded_runs
from dspark.engines.selection import select
from dspark.engines.step_checks import check_target_step
from dspark.engines.tensorrt_checks import check_memory, check_plan_facts, require_tensorrt
from dspark.engines.tensorrt_contract import NEW, PAST, cache_names
from dspark.engines.tensorrt_memory import cache_bytes, input_bytes, output_bytes
from dspark.engines.tensorrt_plan import Bound, LoadedPlan
from dspark.engines.tensorrt_record import TARGET_PLAN, VERIFY_PROFILE, TensorRtTargetRecord
from dspark.engines.warm_up import blank_step

PROFILES = 2


class TensorRtTarget:
    """A loaded target engine (contract.TargetEngine).

    cuda_graphs: launch a verification run as one CUDA graph, recorded when its sizes first occur. Raises
    ConfigurationError when TensorRT, the GPU, its free memory or the folder are not what the engine needs.
    """

    def __init__(self, folder: Path, cuda_graphs: bool = False) -> None:
        self.record = read_record(folder, TensorRtTargetRecord)
        self.limits = self.record.limits
        device = find_device()
        check_plan_facts(folder, self.record.plan, require_tensorrt(), device)
        contract, path = self.record.contract, folder / TARGET_PLAN
        inputs, outputs = input_bytes(self.record), output_bytes(self.record)
        plan_bytes = path.stat().st_size if path.is_file() else 0
        buffers = sum(inputs.values()) + sum(outputs.values())
        check_memory(folder, plan_bytes, cache_bytes(self.record) * self.limits.max_slots, buffers, device)
        self._stream = CudaStream()
        self._plan = LoadedPlan(path, contract, PROFILES, self._stream)
        self._inputs = {name: self._stream.allocate(count) for name, count in inputs.items()}
        self._outputs = {name: self._stream.allocate(count) for name, count in outputs.items()}
        names = cache_names(self.record.model.layers)
        self._slot_bytes = cache_bytes(self.record) // len(names)
        self._caches = {name: self._stream.allocate(self._slot_bytes * self.limits.max_slots) for name in names}
        self._graphs: dict[tuple[int, ...], Callable[[], None]] | None = {} if cuda_graphs else None
        self._slots = SlotTokens(self.limits)
        self._warm_up()

    def step(self, step: TargetStep) -> TargetResult:
        """Run one step (contract.TargetStep).

        Raises EngineError when the step contradicts the limits (slots are then as they were, but for the released
        ones), and when CUDA or TensorRT fails (the step's slots then hold what preceded it).
        """
        check_target_step(step, self.limits, self._slots.committed)
        self._slots.committed[step.released] = 0
        if step.slots.size == 0:
            return self._slots.nothing(step)
        selection = select(step)
        runs = list(padded_runs(step, selection, self._slots.committed, self.record))
        self._slots.remember(step)
        logits: list[list[Float32]] = [[] for _ in step.slots]
        features: list[list[Float32]] = [[] for _ in step.slots]
        for run in runs:
            self._enqueue(run)
            self._fetch(run, logits, features)
            self._stream.synchronize()
        return self._slots.decide(
            step,
            selection,
            _joined(logits, self.limits.vocabulary_size),
            _joined(features, self.limits.hidden_size),
        )

    def close(self) -> None:
        """Let go of plan and memory; the engine cannot be used afterwards."""
        del self._plan
        self._stream.close()

    def _enqueue(self, run: PaddedRun) -> None:
        """Copy a run's inputs in and put the run on the stream."""
        bindings = {name: Bound(address) for name, address in self._outputs.items()}
        for name, array in run.inputs.items():
            self._stream.upload(array, self._inputs[name])
            bindings[name] = Bound(self._inputs[name], array.shape)
        model, rows = self.record.model, run.write_at.size
        for name, address in self._caches.items():
            shape = (rows, model.kv_heads, self.record.capacity, model.head_size)
            bindings[PAST + name] = Bound(address + run.first_slot * self._slot_bytes, shape)
            bindings[NEW + name] = Bound(address + run.first_slot * self._slot_bytes)
        if self._graphs is None or run.profile != VERIFY_PROFILE:
            self._plan.enqueue(run.profile, bindings)
            return
        key = (run.first_slot, *run.tokens.shape, run.logit_rows.shape[1])
        if key not in self._graphs:
            # Recording runs once before: the caches are written twice with the same, which changes nothing.
            self._graphs[key] = self._plan.capture(run.profile, bindings)
        self._graphs[key]()

    def _fetch(self, run: PaddedRun, logits: list[list[Float32]], features: list[list[Float32]]) -> None:
        """Ask for the rows that the step wants of a run, by request."""
        for into, name, width, counts, places in (
            (logits, "logits", self.limits.vocabulary_size, run.logit_counts, run.logit_rows.shape[1]),
            (features, "features", self.limits.hidden_size, run.feature_counts, run.tokens.shape[1]),
        ):
            for piece, count in zip(run.pieces, counts, strict=True):
                if count:
                    rows = np.empty((count, width), np.float32)
                    first = (piece.slot - run.first_slot) * places * width * rows.itemsize
                    self._stream.download(self._outputs[name] + first, rows)
                    into[piece.request].append(rows)

    def _warm_up(self) -> None:
        """Run every size once: the first run of a shape may choose kernels and allocate."""
        for rows in self.record.row_buckets:
            for tokens in self.record.token_buckets:
                self.step(blank_step(rows, min(tokens, 1 + self.limits.max_draft_tokens)))
        for tokens in self.record.prefill_buckets:
            count = min(tokens, self.limits.max_context)
            counts, zeros = np.array([count], np.int32), np.zeros(count, np.int32)
            self.step(dataclasses.replace(blank_step(1, 1), token_counts=counts, tokens=zeros))
        self._slots.committed[:] = 0


def _joined(parts: list[list[Float32]], width: int) -> Float32:
    everything = [part for of_request in parts for part in of_request]
    return np.concatenate(everything) if everything else np.zeros((0, width), np.float32)
