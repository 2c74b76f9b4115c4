"""The drafter's `fc` and `hidden_norm`, exported as the tail of the target engine.

Features leave the target d wide instead of m·d (dspark-spec, section 2, "Context").
"""

from __future__ import annotations

from pathlib import Path

import torch
from dspark.errors import ConfigurationError
from torch import Tensor, nn

from dspark_build.models.config import ModelConfig, read_json
from dspark_build.models.layers import RMSNorm
from dspark_build.models.target import EMBEDDING_TAP
from dspark_build.models.weights import load_weights, read_tensors

TENSORS = ("fc.weight", "hidden_norm.weight")


class FeatureHead(nn.Module):
    """H_ctx = hidden_norm(fc(tapped layer outputs)), [..., m·d] -> [..., d]."""

    def __init__(self, config: ModelConfig, tap_ids: tuple[int, ...]) -> None:
        super().__init__()
        self.tap_ids = tap_ids
        self.fc = nn.Linear(len(tap_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.norm_epsilon)

    @staticmethod
    def load(drafter: Path, target: ModelConfig) -> FeatureHead:
        """Read it from a drafter checkpoint in the published form.

        Raises ConfigurationError when the drafter does not fit the target: hidden size, vocabulary, tapped layers.
        """
        values = read_json(drafter / "config.json")
        source = str(drafter / "config.json")
        for field, expected in (("hidden_size", target.hidden_size), ("vocab_size", target.vocabulary_size)):
            if values.get(field) != expected:
                raise ConfigurationError(f"{source}: {field} is {values.get(field)}, the target has {expected}")
        taps = values.get("target_layer_ids")
        known = range(EMBEDDING_TAP, target.layers)
        if not isinstance(taps, list) or not taps or any(tap not in known for tap in taps):
            raise ConfigurationError(
                f"{source}: target_layer_ids is {taps}; the target's layers are {known.start} to {known.stop - 1}"
            )
        with torch.device("meta"):
            head = FeatureHead(target, tuple(taps))
        head.hidden_norm.epsilon = float(values.get("rms_norm_eps", target.norm_epsilon))
        tensors = {name: tensor for name, tensor in read_tensors(drafter) if name in TENSORS}
        load_weights(head, tensors, str(drafter))
        return head.eval()

    def forward(self, tapped: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(tapped))
