"""The target as an ONNX file over padded rows, with an explicit boolean mask and explicit KV: the graph for TensorRT.

Inputs: tokens, positions [R, L]; logit_rows [R, N] (which of the L rows get logits); mask [R, 1, L, C + L], True where
a query may look (C cached keys, then the L new ones; every query must see at least itself, padding included, or its
softmax has nothing to normalise); past_key.i, past_value.i [R, K, C, D].
Outputs: logits [R, N, V]; features [R, L, d]; new_key.i, new_value.i [R, K, L, D] for the caller to append.
R, L, N and C are dynamic.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from dspark_build.drafters import load_feature_head, read_drafter_config
from dspark_build.models.feature_head import FeatureHead
from dspark_build.models.layers import Attend, masked_attention
from dspark_build.models.target import DenseOutput, Target

ONNX_FILE = "target.onnx"
OPSET = 18


class ExplicitKvTarget(nn.Module):
    """Target and feature head with every cache as an argument and every new key and value as a result."""

    def __init__(self, target: Target, features: FeatureHead) -> None:
        super().__init__()
        self.target = target
        self.features = features

    def forward(
        self, tokens: Tensor, positions: Tensor, logit_rows: Tensor, mask: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        new: list[Tensor] = []

        def attend_in(layer: int) -> Attend:
            def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                new.extend((keys.transpose(1, 2), values.transpose(1, 2)))
                together = (
                    torch.cat([cached.transpose(1, 2), fresh], 1)
                    for cached, fresh in zip(past[2 * layer : 2 * layer + 2], (keys, values), strict=True)
                )
                return masked_attention(queries, *together, mask)

            return attend

        x = self.target.embed_tokens(tokens)
        outputs = self.target.run_layers(x, positions, [attend_in(layer) for layer in range(len(self.target.layers))])
        hidden = self.target.norm(outputs[-1])
        asked = hidden.gather(1, logit_rows[..., None].expand(-1, -1, hidden.shape[-1]))
        tapped = DenseOutput(hidden, outputs, x).tapped(self.features.tap_ids)
        return self.target.lm_head(asked), self.features(tapped), *new


def cache_names(prefix: str, layers: int) -> list[str]:
    """key and value names of all layers: "past" for the inputs, "new" for the outputs."""
    return [f"{prefix}_{kind}.{layer}" for layer in range(layers) for kind in ("key", "value")]


def export_target_onnx(checkpoint: Path, drafter: Path, folder: Path) -> Path:
    """Write `folder/target.onnx` (weights beside it) from a checkpoint and a drafter's feature head; returns the path.

    Raises ConfigurationError when they do not fit together.
    """
    target = Target.load(checkpoint)
    features = load_feature_head(drafter, read_drafter_config(drafter, checkpoint))
    config = target.config
    free = Dim.DYNAMIC                   # the exporter finds out which axes agree; L + C is no sum it can be told
    lengths = {"R": 2, "L": 3, "C": 5, "N": 2}
    example = (
        torch.zeros(lengths["R"], lengths["L"], dtype=torch.int64),
        torch.zeros(lengths["R"], lengths["L"], dtype=torch.int64),
        torch.zeros(lengths["R"], lengths["N"], dtype=torch.int64),
        torch.ones(lengths["R"], 1, lengths["L"], lengths["C"] + lengths["L"], dtype=torch.bool),
        [torch.zeros(lengths["R"], config.kv_heads, lengths["C"], config.head_size) for _ in range(2 * config.layers)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        torch.onnx.export(
            ExplicitKvTarget(target, features).eval(),
            example,
            str(folder / ONNX_FILE),
            input_names=["tokens", "positions", "logit_rows", "mask", *cache_names("past", config.layers)],
            output_names=["logits", "features", *cache_names("new", config.layers)],
            dynamic_shapes=(
                {0: free, 1: free},
                {0: free, 1: free},
                {0: free, 1: free},
                {0: free, 2: free, 3: free},
                [{0: free, 2: free}] * (2 * config.layers),
            ),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    return folder / ONNX_FILE
