"""Operators on network tensors. Arguments that this project does not give are left out."""

from collections import OrderedDict
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorrt as trt

class AttentionMaskType(IntEnum):
    padding = 0
    causal = 1
    sliding_window_causal = 2
    bidirectional = 3
    bidirectionalglm = 4
    blocksparse = 5
    custom_mask = 6

class PositionEmbeddingType(IntEnum):
    learned_absolute = 0
    rope_gptj = 1
    rope_gpt_neox = 2

# One (least, usual, most) or one fixed size for each optimisation profile.
_Range = Sequence[Sequence[int] | int]
_Number = int | float

class Tensor:
    def __init__(
        self,
        name: str | None = None,
        dtype: str | trt.DataType | None = None,
        shape: Sequence[int] | None = None,
        dim_range: OrderedDict[str, _Range] | None = None,
    ) -> None: ...
    def mark_output(self, name: str | None = None, dtype: str | trt.DataType | None = None) -> None: ...
    def view(self, shape: Sequence[int] | Tensor, zero_is_placeholder: bool = True) -> Tensor: ...
    def cast(self, dtype: str | trt.DataType) -> Tensor: ...
    def unsqueeze(self, dim: int) -> Tensor: ...
    def __add__(self, b: Tensor | _Number) -> Tensor: ...
    def __radd__(self, b: Tensor | _Number) -> Tensor: ...
    def __sub__(self, b: Tensor | _Number) -> Tensor: ...
    def __rsub__(self, b: Tensor | _Number) -> Tensor: ...
    def __mul__(self, b: Tensor | _Number) -> Tensor: ...
    def __rmul__(self, b: Tensor | _Number) -> Tensor: ...
    def __truediv__(self, b: Tensor | _Number) -> Tensor: ...

class RopeEmbeddingUtils:
    @staticmethod
    def create_sinusoidal_positions_for_attention_plugin(
        num_pos: int, dim: int, theta: float = 10000.0
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...

def cast(input: Tensor, dtype: str | trt.DataType) -> Tensor: ...
def concat(inputs: Sequence[Tensor | int], dim: int = 0) -> Tensor: ...
def constant(ndarray: npt.NDArray[Any]) -> Tensor: ...
def cumsum(input: Tensor, dim: int, prefer_plugin: bool = True) -> Tensor: ...
def embedding(input: Tensor, weight: Tensor) -> Tensor: ...
def exp(input: Tensor) -> Tensor: ...
def gather(input: Tensor, dim: int, indices: Tensor | int) -> Tensor: ...
def gt(left: Tensor | _Number, right: Tensor | _Number) -> Tensor: ...
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor: ...
def minimum(left: Tensor | _Number, right: Tensor | _Number) -> Tensor: ...
def select(input: Tensor, dim: int, index: Tensor | int) -> Tensor: ...
def sigmoid(input: Tensor) -> Tensor: ...
def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> Sequence[Tensor]: ...
def sum(input: Tensor, dim: int, keepdim: bool = False) -> Tensor: ...
def tanh(input: Tensor) -> Tensor: ...
def topk(
    input: Tensor, k: Tensor | int, dim: int, largest: bool = True, prefer_plugin: bool = True
) -> tuple[Tensor, Tensor]: ...
def where(condition: Tensor | bool, left: Tensor | _Number, right: Tensor | _Number) -> Tensor: ...
def gpt_attention(
    *,
    qkv: Tensor,
    past_key_value: Tensor | None,
    sequence_length: Tensor,
    host_past_key_value_lengths: Tensor | None,
    host_max_attention_window_sizes: Tensor,
    host_sink_token_length: Tensor,
    context_lengths: Tensor | None,
    cache_indirection: Tensor | None,
    host_request_types: Tensor,
    layer_idx: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_size_per_head: int,
    q_scaling: float,
    rotary_embedding_dim: int = 0,
    rotary_embedding_base: float = 10000.0,
    rotary_embedding_max_positions: int = 1024,
    position_embedding_type: PositionEmbeddingType = ...,
    rotary_inv_freq: Tensor | None = None,
    rotary_cos_sin: Tensor | None = None,
    max_context_length: int | None = None,
    mask_type: AttentionMaskType = ...,
    kv_cache_block_offsets: Tensor | None = None,
    host_kv_cache_block_offsets: Tensor | None = None,
    host_kv_cache_pool_pointers: Tensor | None = None,
    host_kv_cache_pool_mapping: Tensor | None = None,
    host_context_lengths: Tensor | None = None,
    use_cache: bool = True,
    host_runtime_perf_knobs: Tensor | None = None,
    host_context_progress: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]: ...
