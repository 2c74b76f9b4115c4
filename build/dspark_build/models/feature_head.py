"""The drafter's `fc` and `hidden_norm`, exported as the tail of the target engine.

Features leave the target d wide instead of m·d (dspark-spec, section 2, "Context").
"""

from __future__ import annotations

from torch import Tensor, nn

from dspark_build.models.config import ModelConfig
from dspark_build.models.layers import RMSNorm


class FeatureHead(nn.Module):
    """H_ctx = hidden_norm(fc(tapped layer outputs)), [..., m·d] -> [..., d]."""

    def __init__(self, config: ModelConfig, tap_ids: tuple[int, ...]) -> None:
        super().__init__()
        self.tap_ids = tap_ids
        self.fc = nn.Linear(len(tap_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.norm_epsilon)

    def forward(self, tapped: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(tapped))
