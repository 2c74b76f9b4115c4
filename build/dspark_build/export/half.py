"""Models in half precision for GPU engines, with float32 where a narrow number would be wrong: angles and logits."""

from __future__ import annotations

import copy

from torch import Tensor, dtype, nn

from dspark_build.models.drafter import Drafter
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


def narrow_drafter(drafter: Drafter, precision: dtype) -> Drafter:
    """A copy of the drafter with its weights in `precision`; angles, sampling and confidence are float32."""
    narrow = copy.deepcopy(drafter).to(precision)
    narrow.rotary = RotaryEmbedding(narrow.config.model)
    narrow.lm_head = Widened(narrow.lm_head)  # type: ignore[assignment]
    if narrow.config.confidence_head:
        narrow.confidence_head = Widened(narrow.confidence_head)  # type: ignore[assignment]
    return narrow.eval()
