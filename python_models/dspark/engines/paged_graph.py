"""The compiled graph of a paged OpenVINO target and the KV pool it reads and writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from dspark.engines.contract import Float32
from dspark.engines.engine_json import ENGINE_GRAPH, REBUILD, TargetRecord
from dspark.engines.paged_op import PagedAttentionCall, replace_calls
from dspark.errors import ConfigurationError, EngineError

KV_BLOCK_SIZE = 32                   # tokens; fixed by OpenVINO's CPU kernel
GRAPH_INPUTS = (
    "tokens",
    "positions",
    "logit_rows",
    "feature_rows",
    "attention_rows",
    "output_rows",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
)
OUTPUTS = ("logits", "features")


def key_cache_name(layer: int) -> str:
    return f"key_cache.{layer}"


def value_cache_name(layer: int) -> str:
    return f"value_cache.{layer}"


@dataclass(frozen=True)
class GraphOutputs:
    """Rows in the order they were asked for; views that the next run overwrites."""

    logits: Float32                  # [logit rows, V]
    features: Float32                # [feature rows, d]

    def copy(self) -> GraphOutputs:
        """The same rows in memory of their own."""
        return GraphOutputs(self.logits.copy(), self.features.copy())


class PagedGraph:
    """One infer request over a KV pool of `record.limits.kv_blocks` blocks.

    Raises ConfigurationError when the folder's graph is missing or was not built by this version.
    """

    def __init__(self, folder: Path, record: TargetRecord, threads: int) -> None:
        built = record.facts.tools.get("openvino")
        if built != _version():
            raise ConfigurationError(f"{folder} was built with openvino {built}, this is {_version()}; {REBUILD}")
        core = ov.Core()
        core.add_extension(PagedAttentionCall)
        try:
            model = core.read_model(folder / ENGINE_GRAPH)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigurationError(f"{folder / ENGINE_GRAPH} cannot be read ({reason}); {REBUILD}") from error
        layers = replace_calls(model)
        if layers != record.layers:
            raise ConfigurationError(f"{folder / ENGINE_GRAPH} has {layers} layers, not {record.layers}; {REBUILD}")
        self._request = core.compile_model(model, "CPU", _options(record, threads)).create_infer_request()
        shape = (record.limits.kv_blocks, record.kv_heads, KV_BLOCK_SIZE, record.head_size)
        # Zeroed memory of this size is handed out page by page as blocks are first written.
        self._caches = {
            name: np.zeros(shape, np.float32)
            for layer in range(layers)
            for name in (key_cache_name(layer), value_cache_name(layer))
        }
        for name, cache in self._caches.items():
            self._request.set_tensor(name, ov.Tensor(cache, shared_memory=True))

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> GraphOutputs:
        """Run with one array for every name in GRAPH_INPUTS. Raises EngineError when OpenVINO fails."""
        try:
            for name in GRAPH_INPUTS:
                self._request.set_tensor(name, ov.Tensor(inputs[name], shared_memory=True))
            self._request.infer()
        except RuntimeError as error:
            raise EngineError(f"the target's graph failed: {error}") from error
        return GraphOutputs(*(self._request.get_tensor(name).data for name in OUTPUTS))


def _version() -> str:
    return str(ov.__version__).split("-")[0]


def _options(record: TargetRecord, threads: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads or len(os.sched_getaffinity(0)),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
    }
    if not record.quantise_activations:
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    return options
