"""The drafter on TensorRT: context K/V in rings on the GPU, the block drafted and sampled inside one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.engines.context_rings import ContextRings, NewRows
from dspark.engines.contract import DrafterResult, DrafterStep
from dspark.engines.cuda_runtime import CudaStream, find_device
from dspark.engines.drafter_checks import check_drafter_step
from dspark.engines.drafter_names import BLOCK_INPUTS, BLOCK_OUTPUTS, CONTEXT_INPUTS
from dspark.engines.engine_json import read_record
from dspark.engines.tensorrt_checks import check_memory, check_plan_facts, require_tensorrt
from dspark.engines.tensorrt_memory import SIZES, drafter_bytes
from dspark.engines.tensorrt_plan import Bound, LoadedPlan
from dspark.engines.tensorrt_record import BLOCK_PLAN, CONTEXT_PLAN, TensorRtDrafterRecord, bucket_for

Array = npt.NDArray[Any]


class TensorRtDrafter:
    """A loaded drafter engine (contract.DrafterEngine).

    Raises ConfigurationError when TensorRT, the GPU, its free memory or the folder are not what the engine needs.
    """

    def __init__(self, folder: Path) -> None:
        self.record = read_record(folder, TensorRtDrafterRecord)
        self.limits, model = self.record.limits, self.record.model
        device = find_device()
        check_plan_facts(folder, self.record.plan, require_tensorrt(), device)
        context, block = self.record.context_contract, self.record.block_contract
        rings = drafter_bytes(self.record, block.inputs[len(BLOCK_INPUTS) :])
        of_context = drafter_bytes(self.record, context.tensors)
        of_block = drafter_bytes(self.record, (*block.inputs[: len(BLOCK_INPUTS)], *block.outputs))
        plans = sum(path.stat().st_size for path in folder.glob("*.plan"))
        buffers = sum(of_context.values()) + sum(of_block.values())
        check_memory(folder, plans, sum(rings.values()), buffers, device)
        self._stream = CudaStream()
        self._context = LoadedPlan(folder / CONTEXT_PLAN, context, 1, self._stream)
        self._block = LoadedPlan(folder / BLOCK_PLAN, block, 1, self._stream)
        self._of_context = {name: self._stream.allocate(count) for name, count in of_context.items()}
        self._of_block = {name: self._stream.allocate(count) for name, count in of_block.items()}
        self._rings = {name: self._stream.allocate(count) for name, count in rings.items()}
        self._row_bytes = model.kv_heads * model.head_size * SIZES[model.dtype]
        # The rows lie on the GPU; the host keeps only where they go and how many there are.
        self._places = ContextRings(0, self.limits.max_slots, self.limits.window, model.kv_heads, model.head_size)

    def step(self, step: DrafterStep) -> DrafterResult:
        """Append the step's context and draft a block for the requests that want one (dspark-spec, section 2).

        Raises EngineError when the step contradicts the limits or what the slots hold (nothing has changed then), and
        when CUDA or TensorRT fails (the step's slots may then have their new context).
        """
        check_drafter_step(step, self.limits, self._places.lengths)
        rows, most = self._places.plan(step), self.record.context_buckets[-1]
        for start in range(0, rows.sources.size, most):
            part = NewRows(*(column[start : start + most] for column in astuple(rows)))
            self._append(part, step.context[part.sources])
        self._places.lengths[step.slots] = step.positions
        return self._draft(step)

    def close(self) -> None:
        """Let go of plans and memory; the engine cannot be used afterwards."""
        del self._context, self._block
        self._stream.close()

    def _append(self, rows: NewRows, features: Array) -> None:
        """Compute K and V of feature rows and copy them to their places, in stretches that lie side by side."""
        count = rows.slots.size
        bucket = bucket_for(count, self.record.context_buckets)
        inputs = dict(zip(CONTEXT_INPUTS, (_padded(features, bucket), _padded(rows.positions, bucket)), strict=True))
        outputs = {name: Bound(self._of_context[name]) for name in self._rings}
        self._context.enqueue(0, self._uploaded(inputs, self._of_context) | outputs)
        places = rows.slots * self.limits.window + rows.positions % self.limits.window
        starts = np.flatnonzero(np.diff(places, prepend=places[0] - 2) != 1)
        for first, end in zip(starts, np.append(starts[1:], count), strict=True):
            for name, ring in self._rings.items():
                source = self._of_context[name] + int(first) * self._row_bytes
                destination = ring + int(places[first]) * self._row_bytes
                self._stream.copy(source, destination, int(end - first) * self._row_bytes)

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
            self._stream.synchronize()
            return result
        slots = step.slots[wanted]
        columns = (
            slots,
            step.anchors[wanted],
            step.positions[wanted],
            self._places.valid_rows(slots),
            step.temperatures[wanted],
            step.uniforms[wanted],
        )
        bucket = bucket_for(wanted.size, self.record.request_buckets)
        inputs = {name: _padded(column, bucket) for name, column in zip(BLOCK_INPUTS, columns, strict=True)}
        model, limits = self.record.model, self.limits
        ring = (limits.max_slots, limits.window, model.kv_heads, model.head_size)
        rings = {name: Bound(address, ring) for name, address in self._rings.items()}
        outputs = {name: Bound(self._of_block[name]) for name in BLOCK_OUTPUTS}
        self._block.enqueue(0, self._uploaded(inputs, self._of_block) | rings | outputs)
        for name in BLOCK_OUTPUTS:
            everything = getattr(result, name)
            drafted = np.empty((wanted.size, *everything.shape[1:]), everything.dtype)
            self._stream.download(self._of_block[name], drafted)
            self._stream.synchronize()
            everything[wanted] = drafted
        return result

    def _uploaded(self, inputs: Mapping[str, Array], buffers: Mapping[str, int]) -> dict[str, Bound]:
        """Copy inputs to their buffers."""
        for name, array in inputs.items():
            self._stream.upload(array, buffers[name])
        return {name: Bound(buffers[name], array.shape) for name, array in inputs.items()}


def _padded(rows: Array, count: int) -> Array:
    """`rows` with its last row repeated until there are `count`."""
    padded: Array = rows[np.minimum(np.arange(count), len(rows) - 1)]
    return padded
