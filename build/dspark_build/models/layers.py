"""The block that Llama and Qwen3 share: target and drafter are built from these layers.

Tensors may have any leading axes (`...`): `[T]` flattened tokens in the paged engine, `[R, L]` padded rows elsewhere.
How queries meet keys is not decided here: every layer is given an `Attend`, which owns cache and mask.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dspark_build.models.config import ModelConfig

# (queries [..., H, D], keys [..., K, D], values [..., K, D]) -> [..., H, D]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotation = tuple[Tensor, Tensor]     # cos and sin, [..., 1, D]


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, computed in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Rotation angles of positions (RoPE, half-split layout of Hugging Face checkpoints)."""

    frequencies: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        exponents = torch.arange(0, config.head_size, 2).float() / config.head_size
        self.register_buffer("frequencies", 1.0 / config.rope_theta**exponents, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rotation:
        """positions [...] -> cos and sin [..., 1, D]."""
        angles = positions.float()[..., None] * self.frequencies
        angles = torch.cat([angles, angles], -1)[..., None, :]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn heads [..., H, D] to their positions."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    """Grouped-query attention; queries and keys are normalised per head in the Qwen3 flavour."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.q_proj = nn.Linear(config.hidden_size, config.heads * config.head_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_size, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_size, config.hidden_size, bias=False)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_size, config.norm_epsilon)
            self.k_norm = RMSNorm(config.head_size, config.norm_epsilon)
        self.qk_norm = config.qk_norm

    def queries(self, x: Tensor, rotation: Rotation) -> Tensor:
        """x [..., d] -> queries at their positions [..., H, D]."""
        heads = self.q_proj(x).unflatten(-1, (-1, self.head_size))
        return rotate(self.q_norm(heads) if self.qk_norm else heads, rotation)

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """x [..., d] -> keys at their positions and values, both [..., K, D]."""
        heads = self.k_proj(x).unflatten(-1, (-1, self.head_size))
        keys = rotate(self.k_norm(heads) if self.qk_norm else heads, rotation)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.head_size))

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        return self.o_proj(attend(self.queries(x, rotation), *self.keys_values(x, rotation)).flatten(-2))


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """One pre-norm block: x + attention, then + feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


def masked_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of padded rows: [R, L, H, D], [R, S, K, D] twice, and mask [R or 1, 1, L, S] -> [R, L, H, D].

    True in the mask means "may look"; None means causal with L = S.
    """
    attended = nn.functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=queries.shape[-2] != keys.shape[-2],
    )
    return attended.transpose(1, 2)
