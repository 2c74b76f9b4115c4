"""A drafter to start training from: valid in form, layers copied from the target, the rest small and random."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER
from dspark_build.drafters.checkpoint import unfreeze
from dspark_build.models.config import ModelConfig, read_json
from dspark_build.models.drafter import Drafter
from dspark_build.models.drafter_config import DrafterConfig
from dspark_build.models.target import Target

INITIAL_DEVIATION = 0.02   # Hugging Face's initializer_range for both model families


def initialise_drafter(
    target_checkpoint: Path,
    *,
    target_layer_ids: Sequence[int],
    start_layers: Sequence[int],
    block_size: int = 7,
    markov_head_type: str = "vanilla",
    markov_rank: int = 128,
    confidence_head: bool = True,
    mask_token_id: int | None = None,
    seed: int = 0,
) -> Drafter:
    """An untrained drafter with one layer for each of the target's `start_layers`, whose weights it copies.

    `fc` starts as the mean of the taps; sequential and confidence head are drawn from N(0, 0.02²). The mask token is
    chosen by `find_mask_token` unless given. Raises ConfigurationError when a layer or token is out of range.
    """
    target = Target.load(target_checkpoint)
    for layer in start_layers:
        if not 0 <= layer < target.config.layers:
            raise ConfigurationError(f"start layer {layer}: the target has the layers 0 to {target.config.layers - 1}")
    rank = 0 if markov_head_type == "none" else markov_rank
    config = DrafterConfig(
        model=dataclasses.replace(target.config, layers=len(start_layers), tied_head=False),
        target_layers=target.config.layers,
        target_layer_ids=tuple(target_layer_ids),
        block_size=block_size,
        mask_token_id=find_mask_token(target_checkpoint) if mask_token_id is None else mask_token_id,
        markov_head_type=markov_head_type,
        markov_rank=rank,
        confidence_head=confidence_head,
        confidence_with_markov=confidence_head and rank > 0,
    )
    drafter = Drafter(config)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.startswith(("markov_head", "confidence_head")):
                parameter.normal_(0, INITIAL_DEVIATION, generator=random)
        size, taps = config.model.hidden_size, len(config.target_layer_ids)
        drafter.fc.weight.copy_(torch.eye(size).repeat(1, taps) / taps)
        drafter.embed_tokens.weight.copy_(target.embed_tokens.weight)
        drafter.lm_head.weight.copy_(target.lm_head.weight)
        drafter.norm.load_state_dict(target.norm.state_dict())
        for layer, source in zip(drafter.layers, start_layers, strict=True):
            layer.load_state_dict(target.layers[source].state_dict())
    return unfreeze(drafter).eval()


def find_mask_token(target_checkpoint: Path) -> int:
    """The id of a token that no text holds.

    The first row of the embedding beyond the tokenizer's vocabulary (Qwen3: 151669, as published), or else the last
    special token that neither the chat template nor the end of a text uses. Raises ConfigurationError when there is
    neither; then `mask_token_id` has to be given.
    """
    tokenizer = read_json(target_checkpoint / TOKENIZER)
    added = tokenizer.get("added_tokens", [])
    known = 1 + max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in added)])
    if known < ModelConfig.read(target_checkpoint).vocabulary_size:
        return int(known)
    ends = read_json(target_checkpoint / GENERATION_CONFIG)
    used = {ends.get("bos_token_id"), *_as_list(ends.get("eos_token_id"))}
    template = (target_checkpoint / CHAT_TEMPLATE).read_text(encoding="utf-8")
    free = [
        int(token["id"])
        for token in added
        if token.get("special") and token["id"] not in used and token["content"] not in template
    ]
    if not free:
        raise ConfigurationError(
            f"{target_checkpoint / TOKENIZER} has no unused special token for the mask; choose a mask_token_id "
            f"that texts do not hold (special tokens: {', '.join(token['content'] for token in added)})"
        )
    return max(free)


def _as_list(ids: int | list[int] | None) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]
