"""Drafter checkpoints: read from any packaging, written as config.json and model.safetensors in the published form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from dspark.errors import ConfigurationError
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspark_build.checkpoints.form import CONFIG, WEIGHTS, write_json
from dspark_build.drafters.draft_vocabulary import take_vocabulary_map
from dspark_build.drafters.packaging import open_drafter
from dspark_build.drafters.published import EMBEDDINGS_FROM_TARGET, parse_drafter_config, published_fields
from dspark_build.models.config import ModelConfig, read_json
from dspark_build.models.drafter import Drafter
from dspark_build.models.drafter_config import DrafterConfig
from dspark_build.models.layers import RotaryEmbedding
from dspark_build.models.weights import load_weights, safetensors_files

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
CONFIDENCE_PREFIX = "confidence_head."


def read_drafter_config(folder: Path, target_checkpoint: Path) -> DrafterConfig:
    """The DrafterConfig in `folder`, checked against the target's. Raises ConfigurationError naming the field."""
    opened = open_drafter(folder)
    return parse_drafter_config(opened.fields, opened.source, ModelConfig.read(target_checkpoint))


def load_drafter_checkpoint(folder: Path, target_checkpoint: Path) -> Drafter:
    """Read a drafter in float32; its own weights are trainable, the copies of the target's frozen.

    Embedding and head come from the target where the config says `embeddings_from_target`, or where another packaging
    leaves them out; of the head, the rows of the draft vocabulary. A checkpoint without confidence weights gives a
    drafter without confidence head. Raises ConfigurationError naming the field that is not understood, or the tensor
    that is missing, surplus or misshapen.
    """
    opened = open_drafter(folder)
    fields, tensors = dict(opened.fields), dict(opened.tensors())
    if not any(name.startswith(CONFIDENCE_PREFIX) for name in tensors):
        fields["enable_confidence_head"] = False
    config = parse_drafter_config(fields, opened.source, ModelConfig.read(target_checkpoint))
    d2t = take_vocabulary_map(tensors, config, str(folder))
    borrowed = [name for name in opened.may_borrow if name not in tensors]
    if fields.get(EMBEDDINGS_FROM_TARGET, False):
        borrowed = [EMBEDDING, HEAD]
        given = [name for name in borrowed if name in tensors]
        if given:
            raise ConfigurationError(f"{folder}: {EMBEDDINGS_FROM_TARGET} is true, but tensor {given[0]} is there too")
    if borrowed:
        embedding, head = target_embeddings(target_checkpoint)
        rows = head if d2t is None else head[torch.arange(len(d2t)) + d2t]
        tensors |= {name: weight for name, weight in ((EMBEDDING, embedding), (HEAD, rows)) if name in borrowed}
    with torch.device("meta"):
        drafter = Drafter(config)
    load_weights(drafter, tensors, str(folder))
    drafter.d2t = d2t
    drafter.rotary = RotaryEmbedding(config.model)
    return unfreeze(drafter).eval()


def save_drafter_checkpoint(
    drafter: Drafter,
    folder: Path,
    target_checkpoint: Path,
    *,
    embeddings: bool = False,
    dtype: torch.dtype = torch.float32,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write config.json and model.safetensors to `folder`, with the published names and fields; returns `folder`.

    Without `embeddings` embed_tokens and lm_head, two thirds of the size, are left out and the config says so;
    other loaders need them in. `notes` (how it was trained) goes to the config's field `dspark_notes`.
    """
    left_out = () if embeddings else (EMBEDDING, HEAD)
    tensors = {
        # Copies, because safetensors refuses tensors that share memory.
        name: tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        for name, tensor in drafter.state_dict().items()
        if name not in left_out
    }
    fields = published_fields(drafter.config, read_json(target_checkpoint / CONFIG), not embeddings)
    fields["torch_dtype"] = str(dtype).removeprefix("torch.")
    if notes is not None:
        fields["dspark_notes"] = dict(notes)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / CONFIG, fields)
    return folder


def target_embeddings(target_checkpoint: Path) -> tuple[Tensor, Tensor]:
    """The target's embedding and head [V, d] in float32, one tensor twice where they are tied."""
    tied = ModelConfig.read(target_checkpoint).tied_head
    embedding = _read_tensor(target_checkpoint, EMBEDDING)
    return embedding, embedding if tied else _read_tensor(target_checkpoint, HEAD)


def unfreeze(drafter: Drafter) -> Drafter:
    """Let gradients reach everything but the copies of the target's embedding and head."""
    for name, parameter in drafter.named_parameters():
        parameter.requires_grad_(name not in (EMBEDDING, HEAD))
    return drafter


def _read_tensor(folder: Path, name: str) -> Tensor:
    for path in safetensors_files(folder):
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():  # noqa: SIM118 - safe_open is not a mapping
                if stored.removeprefix("model.") == name:
                    return file.get_tensor(stored).to(torch.float32)
    raise ConfigurationError(f"{folder}: tensor {name} is missing")
