"""Checkpoints of the EAGLE-3-style baseline: config.json and model.safetensors, in a form of this project's own.

The baseline is trained and evaluated, not served, so no other program reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from dspark.errors import ConfigurationError
from safetensors.torch import save_file

from dspark_build.checkpoints.form import CONFIG, WEIGHTS, write_json
from dspark_build.drafters.checkpoint import (
    EMBEDDING,
    HEAD,
    load_drafter_checkpoint,
    save_drafter_checkpoint,
    target_embeddings,
    unfreeze,
)
from dspark_build.drafters.initial import INITIAL_DEVIATION
from dspark_build.models.config import ModelConfig, read_json
from dspark_build.models.drafter import Drafter
from dspark_build.models.eagle import EagleConfig, EagleDrafter
from dspark_build.models.layers import RotaryEmbedding
from dspark_build.models.target import Target
from dspark_build.models.weights import load_weights, read_tensors

EAGLE_ARCHITECTURE = "Eagle3StyleDrafter"
PROBE_TOKENS = 64


def initialise_eagle(
    target_checkpoint: Path, *, target_layer_ids: Sequence[int], block_size: int = 7, seed: int = 0
) -> EagleDrafter:
    """An untrained drafter whose layer is the target's last and whose features are the mean of the taps.

    The features enter the layer at the scale that it knows; the embeddings' half of the projection is drawn from
    N(0, 0.02²) at the same scale. Raises ConfigurationError when a tap is out of range.
    """
    target = Target.load(target_checkpoint)
    drafter = EagleDrafter(_config(target.config, target_layer_ids, block_size))
    size, taps = target.config.hidden_size, len(target_layer_ids)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        scale = _last_input_scale(target)
        drafter.fc.weight.copy_(torch.eye(size).repeat(1, taps) / taps)
        drafter.input_proj.weight[:, :size].normal_(0, INITIAL_DEVIATION * scale, generator=random)
        drafter.input_proj.weight[:, size:].copy_(scale * torch.eye(size))
        drafter.embed_tokens.weight.copy_(target.embed_tokens.weight)
        drafter.lm_head.weight.copy_(target.lm_head.weight)
        drafter.norm.load_state_dict(target.norm.state_dict())
        drafter.layer.load_state_dict(target.layers[-1].state_dict())
    return unfreeze(drafter).eval()


def save_eagle_checkpoint(
    drafter: EagleDrafter, folder: Path, target_checkpoint: Path, *, dtype: torch.dtype = torch.float32
) -> Path:
    """Write the drafter without the target's embedding and head to `folder`; returns it."""
    tensors = {
        name: tensor.detach().to(dtype).contiguous().clone()
        for name, tensor in drafter.state_dict().items()
        if name not in (EMBEDDING, HEAD)
    }
    fields = dict(read_json(target_checkpoint / CONFIG)) | {
        "architectures": [EAGLE_ARCHITECTURE],
        "num_hidden_layers": 1,
        "num_target_layers": drafter.config.target_layers,
        "target_layer_ids": list(drafter.config.target_layer_ids),
        "block_size": drafter.config.block_size,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / CONFIG, fields)
    return folder


def load_eagle_checkpoint(folder: Path, target_checkpoint: Path) -> EagleDrafter:
    """Read a drafter of that form, in float32. Raises ConfigurationError naming the field or tensor that is wrong."""
    fields, target = read_json(folder / CONFIG), ModelConfig.read(target_checkpoint)
    if fields.get("architectures") != [EAGLE_ARCHITECTURE]:
        raise ConfigurationError(f"{folder / CONFIG}: architectures is {fields.get('architectures')}, "
                                 f"expected {EAGLE_ARCHITECTURE}")
    for field in ("target_layer_ids", "block_size"):
        if field not in fields:
            raise ConfigurationError(f"{folder / CONFIG}: {field} is missing")
    if fields.get("num_target_layers") != target.layers:
        raise ConfigurationError(f"{folder / CONFIG}: num_target_layers is {fields.get('num_target_layers')}, "
                                 f"but the target has {target.layers} layers")
    tensors = dict(read_tensors(folder))
    tensors[EMBEDDING], tensors[HEAD] = target_embeddings(target_checkpoint)
    with torch.device("meta"):
        drafter = EagleDrafter(_config(target, fields["target_layer_ids"], fields["block_size"]))
    load_weights(drafter, tensors, str(folder))
    drafter.rotary = RotaryEmbedding(drafter.config.model)
    return unfreeze(drafter).eval()


def load_any_drafter(folder: Path, target_checkpoint: Path) -> Drafter | EagleDrafter:
    """The DSpark drafter or the baseline in `folder`, as its config says. Raises ConfigurationError."""
    if read_json(folder / CONFIG).get("architectures") == [EAGLE_ARCHITECTURE]:
        return load_eagle_checkpoint(folder, target_checkpoint)
    return load_drafter_checkpoint(folder, target_checkpoint)


def save_any_drafter(
    drafter: Drafter | EagleDrafter, folder: Path, target_checkpoint: Path, *, dtype: torch.dtype = torch.float32
) -> Path:
    """Write the DSpark drafter or the baseline to `folder` in its own form, without the target's embedding and head."""
    save = save_eagle_checkpoint if isinstance(drafter, EagleDrafter) else save_drafter_checkpoint
    return save(drafter, folder, target_checkpoint, dtype=dtype)


def _config(target: ModelConfig, target_layer_ids: Sequence[int], block_size: int) -> EagleConfig:
    return EagleConfig(
        model=dataclasses.replace(target, layers=1, tied_head=False),
        target_layers=target.layers,
        target_layer_ids=tuple(target_layer_ids),
        block_size=block_size,
    )


def _last_input_scale(target: Target) -> float:
    """The root mean square of what the target's last layer reads, over a few tokens; the first, a sink, aside."""
    tokens = torch.arange(min(PROBE_TOKENS, target.config.vocabulary_size))[None]
    output = target.forward_dense(tokens)
    entering = (output.embedding, *output.layer_outputs)[-2][:, 1:]
    return float(entering.pow(2).mean(-1).sqrt().median())
