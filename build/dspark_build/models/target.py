"""The target model in torch: one definition, exported twice (paged OpenVINO, explicit-KV ONNX) and used in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from dspark_build.models.config import ModelConfig
from dspark_build.models.layers import Attend, DecoderLayer, RMSNorm, RotaryEmbedding, masked_attention
from dspark_build.models.weights import load_weights, read_tensors

EMBEDDING_TAP = -1
Entry = TypeVar("Entry")


class DenseOutput(NamedTuple):
    """What a whole-sequence forward leaves behind, all [B, S, d]."""

    last_hidden: Tensor              # after the final norm: lm_head(last_hidden) are the logits
    layer_outputs: list[Tensor]      # output of decoder layer i at index i
    embedding: Tensor

    def tapped(self, tap_ids: Sequence[int]) -> Tensor:
        """The outputs of the tapped layers side by side [B, S, m·d] (dspark-spec, section 2)."""
        return torch.cat([self.embedding if tap == EMBEDDING_TAP else self.layer_outputs[tap] for tap in tap_ids], -1)


class Target(nn.Module):
    """Llama or Qwen3 for next-token prediction; parameter names are those of Hugging Face without `model.`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.lm_head = nn.Linear(config.hidden_size, config.vocabulary_size, bias=False)
        self.rotary = RotaryEmbedding(config)
        if config.tied_head:
            self.lm_head.weight = self.embed_tokens.weight

    @staticmethod
    def load(folder: Path) -> Target:
        """Read a Hugging Face folder (config.json and safetensors, sharded or not) in float32.

        Raises ConfigurationError naming the tensor that is missing, surplus or misshapen, or the config field that is
        not supported.
        """
        target = Target.on_meta(ModelConfig.read(folder))
        load_weights(target, target.own_names(dict(read_tensors(folder))), str(folder))
        target.rotary = RotaryEmbedding(target.config)
        return target.eval()

    @staticmethod
    def on_meta(config: ModelConfig) -> Target:
        """A target whose weights have shapes only, to be assigned: initialising billions of numbers takes minutes."""
        with torch.device("meta"):
            return Target(config)

    def own_names(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """What belongs to the names of a Hugging Face checkpoint, by this module's names."""
        own = {name.removeprefix("model."): entry for name, entry in entries.items()}
        if self.config.tied_head:
            own.pop("lm_head.weight", None)          # some files repeat the embedding
        return own

    def run_layers(self, x: Tensor, positions: Tensor, attends: Sequence[Attend]) -> list[Tensor]:
        """Embeddings x [..., d] at positions [...] through all layers; `attends` has one entry a layer."""
        rotation = self.rotary(positions, x.dtype)
        outputs = []
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, rotation, attend)
            outputs.append(x)
        return outputs

    def forward_dense(self, input_ids: Tensor, padding_mask: Tensor | None = None) -> DenseOutput:
        """Causal forward of whole sequences, for training and for reference.

        input_ids [B, S]; padding_mask [B, S] is True at real tokens. Padding on the right needs no mask, because
        causal attention never looks ahead; positions count real tokens only.
        """
        length = input_ids.shape[1]
        if padding_mask is None:
            positions = torch.arange(length, device=input_ids.device)[None]
            mask = None
        else:
            positions = (padding_mask.long().cumsum(-1) - 1).clamp(min=0)
            causal = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()
            # The diagonal stays open, else a padded query would look at nothing and give NaN.
            alone = torch.eye(length, dtype=torch.bool, device=input_ids.device)
            mask = (causal & padding_mask[:, None, :] | alone)[:, None]
        embedding = self.embed_tokens(input_ids)

        def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return masked_attention(queries, keys, values, mask)

        outputs = self.run_layers(embedding, positions, [attend] * len(self.layers))
        return DenseOutput(self.norm(outputs[-1]), outputs, embedding)

    def forward(self, input_ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Logits [B, S, V] of whole sequences."""
        return self.lm_head(self.forward_dense(input_ids, padding_mask).last_hidden)
