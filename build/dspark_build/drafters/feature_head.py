"""The feature head of a drafter's checkpoint, for the target's engine."""

from __future__ import annotations

from pathlib import Path

import torch

from dspark_build.drafters.packaging import open_drafter
from dspark_build.models.drafter_config import DrafterConfig
from dspark_build.models.feature_head import FeatureHead
from dspark_build.models.weights import load_weights

TENSORS = ("fc.weight", "hidden_norm.weight")


def load_feature_head(folder: Path, config: DrafterConfig) -> FeatureHead:
    """Read `fc` and `hidden_norm` of a drafter whose config was read, and so fits its target, already.

    Raises ConfigurationError naming a tensor that is missing or misshapen.
    """
    with torch.device("meta"):
        head = FeatureHead(config.model, config.target_layer_ids)
    load_weights(head, {name: t for name, t in open_drafter(folder).tensors() if name in TENSORS}, str(folder))
    return head.eval()
