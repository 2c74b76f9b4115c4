"""The two compiled graphs of an OpenVINO drafter, run in pieces that keep every result independent of its neighbours.

`context` turns feature rows into K and V rows; `block` reads the rings of K and V in place and drafts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from dspark.engines.contract import DrafterResult, Float32, Int32
from dspark.engines.drafter_names import BLOCK_INPUTS, BLOCK_OUTPUTS, CONTEXT_INPUTS, COUPLING_INPUTS, pool_names
from dspark.engines.drafter_record import DrafterRecord, RunSizes
from dspark.engines.engine_json import REBUILD
from dspark.errors import ConfigurationError, EngineError

CONTEXT_GRAPH = "context.xml"
BLOCK_GRAPH = "block.xml"

Array = npt.NDArray[Any]


class DrafterGraphs:
    """Both graphs, over rings [slots, W, K, D] in the order of `pool_names`. Raises ConfigurationError."""

    def __init__(self, folder: Path, record: DrafterRecord, pools: Sequence[Float32], threads: int = 0) -> None:
        names = pool_names(record.layers)
        self._record = record
        self._context = _request(folder / CONTEXT_GRAPH, record, threads)
        self._block = _request(folder / BLOCK_GRAPH, record, threads)
        self._context_outputs = names
        for name, pool in zip(names, pools, strict=True):
            self._block.set_tensor(name, ov.Tensor(pool, shared_memory=True))

    def context(self, features: Float32, positions: Int32) -> list[Float32]:
        """K and V rows [A, K, D] of feature rows [A, d] at positions [A], A > 0, in the order of `pool_names`."""
        inputs = dict(zip(CONTEXT_INPUTS, (features, positions), strict=True))
        sizes = self._record.context_rows_per_run
        return _run_in_pieces(self._context, inputs, self._context_outputs, sizes)

    def block(self, inputs: Sequence[Array]) -> DrafterResult:
        """Draft for R > 0 requests; `inputs` as in BLOCK_INPUTS and COUPLING_INPUTS, which not every graph reads."""
        named = dict(zip((*BLOCK_INPUTS, *COUPLING_INPUTS), inputs, strict=True))
        if not self._record.limits.can_couple:
            named = {name: named[name] for name in BLOCK_INPUTS}
        outputs = _run_in_pieces(self._block, named, BLOCK_OUTPUTS, self._record.requests_per_run)
        return DrafterResult(*outputs)


def _run_in_pieces(
    request: ov.InferRequest, inputs: Mapping[str, Array], outputs: Sequence[str], sizes: RunSizes
) -> list[Array]:
    """Run over the first axis of `inputs`, at most `sizes.most` rows at a time, padded to at least `sizes.least`."""
    rows = len(next(iter(inputs.values())))
    pieces: list[list[Array]] = []
    try:
        for start in range(0, rows, sizes.most):
            count = min(sizes.most, rows - start)
            chosen = start + np.minimum(np.arange(max(count, sizes.least)), count - 1)
            for name, values in inputs.items():
                request.set_tensor(name, ov.Tensor(np.ascontiguousarray(values[chosen])))
            request.infer()
            pieces.append([request.get_tensor(name).data[:count].copy() for name in outputs])
    except RuntimeError as error:
        raise EngineError(f"the drafter's graph failed: {error}") from error
    return [np.concatenate(columns) for columns in zip(*pieces, strict=True)]


def _request(path: Path, record: DrafterRecord, threads: int) -> ov.InferRequest:
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads or len(os.sched_getaffinity(0)),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    if not record.quantise_activations:
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    core = ov.Core()
    try:
        model = core.read_model(path)
    except RuntimeError as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); {REBUILD}") from error
    return core.compile_model(model, "CPU", options).create_infer_request()
