"""Weights from safetensors files into torch modules, with every disagreement named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from dspark.errors import ConfigurationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dspark_build.models.config import read_json

# Buffers that old checkpoints carry and that are computed here.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
# Types of tensors that are no weights: maps between vocabularies.
MAP_TYPES = (torch.int64, torch.bool)


def safetensors_files(folder: Path) -> list[Path]:
    """The weight files of a folder: model.safetensors, or the shards its index names. Raises ConfigurationError."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ConfigurationError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        raise ConfigurationError(f"{index} names {missing[0] if missing else 'no file'}, which {folder} does not have")
    return [folder / name for name in names]


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a checkpoint folder, one after another: weights as float32. Raises ConfigurationError."""
    for path in safetensors_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
                    tensor = file.get_tensor(name)
                    yield name, tensor if tensor.dtype in MAP_TYPES else tensor.to(torch.float32)
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error


def check_shapes(module: nn.Module, shapes: Mapping[str, Sequence[int]], source: str) -> None:
    """Raise ConfigurationError naming a tensor that `module` lacks, does not know, or has in another shape."""
    wanted = {name: list(parameter.shape) for name, parameter in module.named_parameters()}
    for name, shape in wanted.items():
        if name not in shapes:
            raise ConfigurationError(f"{source}: tensor {name} is missing")
        if list(shapes[name]) != shape:
            raise ConfigurationError(f"{source}: tensor {name} has shape {list(shapes[name])}, expected {shape}")
    surplus = sorted(name for name in set(shapes) - set(wanted) if not name.endswith(IGNORED_SUFFIXES))
    if surplus:
        raise ConfigurationError(f"{source}: tensor {surplus[0]} is not part of this model ({len(surplus)} surplus)")


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Assign `tensors` to the parameters of `module`, a shared parameter to all its owners.

    Raises ConfigurationError naming a tensor that is missing, surplus or of another shape.
    """
    check_shapes(module, {name: tensor.shape for name, tensor in tensors.items()}, source)
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((owner, name))
    for name, parameter in list(module.named_parameters()):
        loaded = nn.Parameter(tensors[name], requires_grad=False)
        for owner, attribute in owners[id(parameter)]:
            setattr(owner, attribute, loaded)
