"""Paged attention in a graph that can be saved: our own placeholder op, turned into OpenVINO's when it is loaded.

OpenVINO's `_PagedAttentionExtension` is lost when a model is written to disk and read back. A placeholder survives, and
is replaced in memory before compiling. Its inputs are the ones that vary; all else follows from the caches' shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.op import _PagedAttentionExtension


class PagedAttentionCall(ov.Op):  # type: ignore[misc]
    """Attention of flattened rows over a paged KV pool, without an implementation of its own.

    Inputs: queries [T', H·D], keys [T', K·D], values [T', K·D], key_cache and value_cache [blocks, K, block, D],
    past_lens [R], subsequence_begins [R+1], block_indices, block_indices_begins [R+1], max_context_len [].
    Output: [T', H·D].
    """

    def __init__(self, inputs: Any = None) -> None:
        if inputs is None:
            super().__init__(self)
        else:
            super().__init__(self, inputs)

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, new_inputs: Any) -> PagedAttentionCall:
        return PagedAttentionCall(new_inputs)

    def visit_attributes(self, visitor: Any) -> bool:
        return True

    def has_evaluate(self) -> bool:
        return False


def replace_calls(model: ov.Model) -> int:
    """Put OpenVINO's paged attention in the place of every placeholder; returns how many there were."""
    calls = [node for node in model.get_ordered_ops() if node.get_type_name() == PagedAttentionCall.__name__]
    for call in calls:
        call.output(0).replace(_paged_attention(call.input_values()).output(0))
    model.validate_nodes_and_infer_types()
    return len(calls)


def _paged_attention(inputs: list[Any]) -> Any:
    heads, head_size = (inputs[3].get_partial_shape()[axis].get_length() for axis in (1, 3))
    attention = _PagedAttentionExtension([*inputs[:9], *_settings(head_size, inputs[9])])
    for name, value in (
        ("num_k_heads", heads), ("num_v_heads", heads), ("k_head_size", head_size), ("v_head_size", head_size),
    ):
        attention.set_rt_info(value, name)
    return attention


def _settings(head_size: int, max_context_len: Any) -> list[Any]:
    """Inputs 9 to 27: scale, then the features that are switched off by an empty tensor or a zero."""

    def scalar(value: float, dtype: Any) -> Any:
        return ops.constant(np.array(value, dtype)).output(0)

    def empty(dtype: Any) -> Any:
        return ops.constant(np.zeros(0, dtype)).output(0)

    integer, real = np.int32, np.float32
    return [
        scalar(head_size**-0.5, real),
        scalar(0, integer),                              # sliding window
        empty(real),                                     # ALiBi slopes
        max_context_len,
        empty(integer),                                  # score aggregation window
        empty(integer), empty(integer), empty(real),     # cache rotation: block indices, deltas, trigonometry
        empty(real), scalar(64, integer), scalar(8, integer),  # sparse prefill: thresholds, block size, stride
        empty(real),                                     # attention sinks
        scalar(0, integer), empty(integer), empty(integer), empty(integer),  # adaptive KV eviction
        empty(integer),                                  # token types
        empty(np.uint8), empty(integer),                 # query-to-query bias and its begins
    ]
