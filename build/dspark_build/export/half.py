"""Models in half precision for GPU engines, with float32 where a narrow number would be wrong: angles and logits."""

from __future__ import annotations

import torch
from torch import Tensor, dtype, nn

from dspark_build.models.drafter import Drafter, KeysValues
from dspark_build.models.layers import RotaryEmbedding
from dspark_build.models.target import Target


class Widened(nn.Module):
    """A module whose result leaves in float32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).float()


def narrow_target(target: Target, precision: dtype) -> Target:
    """The target itself with its weights in `precision`, its angles and logits in float32."""
    target.to(precision)
    target.rotary = RotaryEmbedding(target.config)       # angles of position 4095 need more than 11 bits
    target.lm_head = Widened(target.lm_head)  # type: ignore[assignment]
    return target.eval()


class MaskedByQuery(Drafter):
    """The drafter with a row of the attention mask for every query, as ONNX Attention wants it."""

    def _backbone_over(
        self, block_embeds: Tensor, positions: Tensor, context: list[KeysValues], mask: Tensor
    ) -> Tensor:
        folded = block_embeds.shape[1] * self.config.model.heads // self.config.model.kv_heads
        return super()._backbone_over(block_embeds, positions, context, mask.expand(-1, folded, -1))


def narrow_drafter(drafter: Drafter, precision: dtype) -> Drafter:
    """A copy of the drafter with its weights in `precision`; angles, sampling and confidence are float32."""
    with torch.device("meta"):
        narrow = MaskedByQuery(drafter.config)
    weights = {name: t.to(precision) if t.is_floating_point() else t for name, t in drafter.state_dict().items()}
    narrow.load_state_dict(weights, assign=True)
    narrow.rotary = RotaryEmbedding(narrow.config.model)
    narrow.lm_head = Widened(narrow.lm_head)  # type: ignore[assignment]
    if narrow.config.confidence_head:
        narrow.confidence_head = Widened(narrow.confidence_head)  # type: ignore[assignment]
    return narrow.eval()
