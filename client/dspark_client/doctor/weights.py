"""How much the weights of a checkpoint are, by its config.json: the torch definitions with no numbers in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from dspark_build.drafters import read_drafter_config
from dspark_build.models.config import ModelConfig
from dspark_build.models.drafter import Drafter
from dspark_build.models.drafter_config import DrafterConfig
from dspark_build.models.target import Target
from torch import nn

HALF, BYTE = 2, 1


@dataclass(frozen=True)
class Weights:
    """Counts of numbers; a matrix that two layers share counts once, and once more in `shared`."""

    matrices: int                    # of linear layers: what int8 and fp8 make smaller
    rows: int                        # of those matrices, each with a scale of its own
    others: int                      # embeddings, norms, biases: 16 bits whatever the precision
    shared: int                      # a head that is the embedding

    @property
    def parameters(self) -> int:
        return self.matrices + self.others

    def size(self, small: bool) -> int:
        """Bytes; `small`: matrices in 8 bits with a 16-bit scale a row, else all in 16 bits."""
        matrices = self.matrices * BYTE + self.rows * HALF if small else self.matrices * HALF
        return matrices + self.others * HALF

    def shared_size(self, small: bool) -> int:
        """Bytes of the second copy that an engine may make of a shared matrix."""
        return self.shared * (BYTE if small else HALF)


def target_weights(folder: Path) -> tuple[ModelConfig, Weights]:
    """Shape and weights of a target. Raises ConfigurationError (see ModelConfig.read)."""
    config = ModelConfig.read(folder)
    return config, _count(Target.on_meta(config))


def drafter_weights(folder: Path, target: Path) -> tuple[DrafterConfig, Weights]:
    """Shape and weights of a drafter, embedding and head included, which its engine holds itself.

    Raises ConfigurationError (see read_drafter_config).
    """
    config = read_drafter_config(folder, target)
    with torch.device("meta"):
        return config, _count(Drafter(config))


def _count(model: nn.Module) -> Weights:
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = {id(module.weight): module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    shared = [weight.numel() for key, weight in linear.items() if key in embeddings]
    matrices = [weight for key, weight in linear.items() if key not in embeddings]
    total = sum(parameter.numel() for parameter in model.parameters())
    counted = sum(weight.numel() for weight in matrices)
    return Weights(counted, sum(weight.shape[0] for weight in matrices), total - counted, sum(shared))
