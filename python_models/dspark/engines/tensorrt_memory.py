"""GPU memory that the TensorRT engines allocate besides their plans, in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dspark.engines.tensorrt_contract import GraphTensor
from dspark.engines.tensorrt_record import TensorRtDrafterRecord, TensorRtTargetRecord

SIZES = {"bool": 1, "int32": 4, "int64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def cache_bytes(record: TensorRtTargetRecord) -> int:
    """The caches of one slot, all layers."""
    model = record.model
    return 2 * model.layers * model.kv_heads * record.capacity * model.head_size * SIZES[model.dtype]


def input_bytes(record: TensorRtTargetRecord) -> dict[str, int]:
    """The target's inputs besides its caches, each as large as any run needs it."""
    return _largest(record, (tensor for tensor in record.contract.inputs if not tensor.name.startswith("past_")))


def output_bytes(record: TensorRtTargetRecord) -> dict[str, int]:
    """The target's outputs besides its caches."""
    return _largest(record, (tensor for tensor in record.contract.outputs if not tensor.name.startswith("new_")))


def drafter_bytes(record: TensorRtDrafterRecord, tensors: Iterable[GraphTensor]) -> dict[str, int]:
    """Tensors of the drafter's graphs, each as large as any run needs it."""
    axes = {"R": record.request_buckets[-1], "A": record.context_buckets[-1]}
    return {tensor.name: _bytes(tensor, axes) for tensor in tensors}


def _largest(record: TensorRtTargetRecord, tensors: Iterable[GraphTensor]) -> dict[str, int]:
    """A verification run has many rows of few tokens, a prefill run one row of many."""
    tokens = record.token_buckets[-1]
    verify = {"R": record.row_buckets[-1], "L": tokens, "N": tokens}
    prefill = {"R": 1, "L": record.prefill_buckets[-1], "N": tokens}
    return {tensor.name: max(_bytes(tensor, verify), _bytes(tensor, prefill)) for tensor in tensors}


def _bytes(tensor: GraphTensor, axes: dict[str, int]) -> int:
    sizes = (axis if isinstance(axis, int) else axes[axis] for axis in tensor.shape)
    return math.prod(sizes) * SIZES[tensor.dtype]
