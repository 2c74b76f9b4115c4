"""The block that Llama and Qwen3 share, as TensorRT-LLM modules; `models.layers` is the same in torch.

Importing this module imports TensorRT-LLM: `tensorrt_llm_build` does so once the version has been checked.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from dspark.engines.tensorrt_llm_tensors import PagedShape
from tensorrt_llm.functional import (
    AttentionMaskType,
    PositionEmbeddingType,
    RopeEmbeddingUtils,
    Tensor,
    concat,
    constant,
    gpt_attention,
    split,
)
from tensorrt_llm.layers import ColumnLinear, GatedMLP, RmsNorm, RowLinear
from tensorrt_llm.module import Module

from dspark_build.models.config import ModelConfig


@dataclass(frozen=True)
class AttentionTensors:
    """Network inputs that every layer's attention reads; the fields are named as the tensors are."""

    sequence_length: Tensor
    context_lengths: Tensor
    cache_indirection: Tensor
    kv_cache_block_offsets: Tensor
    host_kv_cache_block_offsets: Tensor
    host_kv_cache_pool_pointers: Tensor
    host_kv_cache_pool_mapping: Tensor
    host_context_lengths: Tensor
    host_past_key_value_lengths: Tensor
    host_request_types: Tensor
    host_max_attention_window_sizes: Tensor
    host_sink_token_length: Tensor
    host_runtime_perf_knobs: Tensor
    host_context_progress: Tensor


ATTENTION_NAMES = tuple(field.name for field in fields(AttentionTensors))


@dataclass(frozen=True)
class Rotary:
    """RoPE tables, constants of the network that its layers share."""

    inv_freq: Tensor
    cos_sin: Tensor

    @staticmethod
    def of(config: ModelConfig, positions: int) -> Rotary:
        """Tables for positions 0..positions-1; to be made while the network is described."""
        inv_freq, cos_sin = RopeEmbeddingUtils.create_sinusoidal_positions_for_attention_plugin(
            positions, config.head_size, config.rope_theta
        )
        return Rotary(constant(np.ascontiguousarray(inv_freq)), constant(np.ascontiguousarray(cos_sin)))


class PagedAttention(Module):
    """Grouped-query attention by the gpt_attention plugin, which turns Q and K, writes K and V, and attends.

    mask: `causal`, or `padding`: every row of a sequence sees all of it, what is in the pool and what is new. The
    plugin takes its `bidirectional` for `causal` in the context phase.
    """

    def __init__(self, config: ModelConfig, shape: PagedShape, layer: int, mask: AttentionMaskType) -> None:
        super().__init__()
        self.config, self.paged, self.layer, self.mask = config, shape, layer, mask
        self.sizes = [heads * config.head_size for heads in (config.heads, config.kv_heads, config.kv_heads)]
        dtype = shape.dtype
        self.qkv = ColumnLinear(config.hidden_size, sum(self.sizes), bias=False, dtype=dtype, gather_output=False)
        self.dense = RowLinear(self.sizes[0], config.hidden_size, bias=False, dtype=dtype)
        if config.qk_norm:
            self.q_norm = RmsNorm(config.head_size, eps=config.norm_epsilon, dtype=dtype)
            self.k_norm = RmsNorm(config.head_size, eps=config.norm_epsilon, dtype=dtype)

    def forward(self, x: Tensor, attention: AttentionTensors, rotary: Rotary) -> Tensor:
        """x [T, d] -> [T, d]."""
        config, shape = self.config, self.paged
        qkv = self.qkv(x)
        if config.qk_norm:
            queries, keys, values = split(qkv, self.sizes, dim=1)
            queries = self._normed(self.q_norm, queries, config.heads)
            keys = self._normed(self.k_norm, keys, config.kv_heads)
            qkv = concat([queries, keys, values], dim=1)
        attended, _ = gpt_attention(
            qkv=qkv,
            past_key_value=None,
            sequence_length=attention.sequence_length,
            host_past_key_value_lengths=attention.host_past_key_value_lengths,
            host_max_attention_window_sizes=attention.host_max_attention_window_sizes,
            host_sink_token_length=attention.host_sink_token_length,
            context_lengths=attention.context_lengths,
            cache_indirection=attention.cache_indirection,
            host_request_types=attention.host_request_types,
            layer_idx=self.layer,
            num_heads=config.heads,
            num_kv_heads=config.kv_heads,
            hidden_size_per_head=config.head_size,
            q_scaling=1.0,
            rotary_embedding_dim=config.head_size,
            rotary_embedding_base=config.rope_theta,
            rotary_embedding_max_positions=shape.capacity,
            position_embedding_type=PositionEmbeddingType.rope_gpt_neox,
            rotary_inv_freq=rotary.inv_freq,
            rotary_cos_sin=rotary.cos_sin,
            max_context_length=shape.max_tokens,
            mask_type=self.mask,
            kv_cache_block_offsets=attention.kv_cache_block_offsets,
            host_kv_cache_block_offsets=attention.host_kv_cache_block_offsets,
            host_kv_cache_pool_pointers=attention.host_kv_cache_pool_pointers,
            host_kv_cache_pool_mapping=attention.host_kv_cache_pool_mapping,
            host_context_lengths=attention.host_context_lengths,
            use_cache=True,
            host_runtime_perf_knobs=attention.host_runtime_perf_knobs,
            host_context_progress=attention.host_context_progress,
        )
        result: Tensor = self.dense(attended)
        return result

    def _normed(self, norm: RmsNorm, heads: Tensor, count: int) -> Tensor:
        """Normalise every head of [T, count * D] by itself."""
        size = self.config.head_size
        return norm(heads.view([-1, count, size])).view([-1, count * size])


class DecoderLayer(Module):
    """One pre-norm block: x + attention, then + feed-forward."""

    def __init__(self, config: ModelConfig, shape: PagedShape, layer: int, mask: AttentionMaskType) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, eps=config.norm_epsilon, dtype=shape.dtype)
        self.self_attn = PagedAttention(config, shape, layer, mask)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.norm_epsilon, dtype=shape.dtype)
        self.mlp = GatedMLP(
            hidden_size=config.hidden_size,
            ffn_hidden_size=config.intermediate_size,
            hidden_act="silu",
            bias=False,
            dtype=shape.dtype,
        )

    def forward(self, x: Tensor, normed: Tensor, attention: AttentionTensors, rotary: Rotary) -> Tensor:
        """x [T, d] and what attention reads of it, `input_layernorm(x)` -> [T, d]."""
        attended: Tensor = self.self_attn(normed, attention, rotary)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))
