"""The two graphs of a drafter engine as torch modules, the same for every runtime they are exported to.

`context` turns feature rows into K and V rows, which the host keeps in one ring of W rows a slot. `block` reads the
rings in place and drafts. Inputs and outputs are named in `dspark.engines.drafter_graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dspark_build.models.coupling import Noise
from dspark_build.models.drafter import Drafter


class ContextGraph(nn.Module):
    """features [A, d], positions [A] int32 -> K and V of every layer, [A, K, D] each, in the order of `pool_names`."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(self, features: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        rows = self.drafter.context_keys_values(features, positions)
        return tuple(tensor for keys_values in rows for tensor in keys_values)

    def example(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(3, self.drafter.config.model.hidden_size), torch.arange(3, dtype=torch.int32)


class BlockGraph(nn.Module):
    """slots, anchors, positions, context_lengths [R] int32, temperatures [R], uniforms [R, gamma], pools -> DraftBlock.

    Each pool is [slots, W, K, D]; `context_lengths` counts the valid rows of a slot's ring, the first ones.
    """

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(
        self,
        slots: Tensor,
        anchors: Tensor,
        positions: Tensor,
        context_lengths: Tensor,
        temperatures: Tensor,
        uniforms: Tensor,
        pools: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        return self._draft(slots, anchors, positions, context_lengths, temperatures, uniforms, pools)

    def _draft(
        self,
        slots: Tensor,
        anchors: Tensor,
        positions: Tensor,
        context_lengths: Tensor,
        temperatures: Tensor,
        uniforms: Tensor,
        pools: Sequence[Tensor],
        noise: Noise | None = None,
    ) -> tuple[Tensor, ...]:
        rings = [torch.index_select(pool, 0, slots) for pool in pools]
        context = list(zip(rings[::2], rings[1::2], strict=True))
        window = pools[0].shape[1]
        valid = torch.arange(window, dtype=torch.int32)[None] < context_lengths[:, None]
        return tuple(self.drafter.draft(anchors.long(), positions, context, valid, temperatures, uniforms, noise))

    def example(self, window: int, max_slots: int) -> tuple[Any, ...]:
        config = self.drafter.config
        ring = (max_slots, window, config.model.kv_heads, config.model.head_size)
        # Tensors of their own, because exporters take one tensor given twice for one input.
        integers = [torch.ones(2, dtype=torch.int32) for _ in range(4)]
        pools = [torch.zeros(ring) for _ in range(2 * config.model.layers)]
        return *integers, torch.ones(2), torch.zeros(2, config.block_size), pools


class CoupledBlockGraph(BlockGraph):
    """BlockGraph that reads noise_keys [R, gamma] int32 and coupled [R] bool besides, before the pools."""

    def forward(  # type: ignore[override]
        self,
        slots: Tensor,
        anchors: Tensor,
        positions: Tensor,
        context_lengths: Tensor,
        temperatures: Tensor,
        uniforms: Tensor,
        noise_keys: Tensor,
        coupled: Tensor,
        pools: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        noise = Noise(noise_keys, coupled)
        return self._draft(slots, anchors, positions, context_lengths, temperatures, uniforms, pools, noise)

    def example(self, window: int, max_slots: int) -> tuple[Any, ...]:
        *inputs, pools = super().example(window, max_slots)
        keys = torch.zeros(2, self.drafter.config.block_size, dtype=torch.int32)
        return *inputs, keys, torch.ones(2, dtype=torch.bool), pools
