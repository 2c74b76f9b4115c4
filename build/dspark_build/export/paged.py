"""The target as an OpenVINO graph with paged attention: flattened tokens, block tables, outputs where asked for."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import openvino as ov
import torch
from dspark.engines.paged_graph import GRAPH_INPUTS, KV_BLOCK_SIZE, OUTPUTS, key_cache_name, value_cache_name
from dspark.engines.paged_op import PagedAttentionCall
from openvino.frontend.pytorch import ConversionExtension, ModuleExtension
from torch import Tensor, nn

from dspark_build.models.layers import Attend
from dspark_build.models.target import EMBEDDING_TAP, Target

_PLACEHOLDER = "dspark::paged_attention"
_PLACEHOLDER_INPUTS = 10             # of PagedAttentionCall


class PagedCore(nn.Module):
    """Stands for attention over the KV pool while the graph is traced."""

    def forward(self, queries: Tensor, *rest: Tensor) -> Tensor:
        return queries


class Features(Protocol):
    """What leaves the target beside the logits."""

    tap_ids: tuple[int, ...]

    def __call__(self, tapped: Tensor) -> Tensor:
        """Rows of the tapped layers side by side [..., m·d] -> feature rows."""
        ...


class PagedTarget(nn.Module):
    """The target and the drafter's feature head over T flattened tokens of any number of sequences.

    `attention_rows` [T'] and `output_rows` [T] lead into and out of attention: they may repeat a row, so that
    attention never sees a sequence with a single row, at no cost to the matrix products.
    """

    def __init__(self, target: Target, features: Features) -> None:
        super().__init__()
        self.target = target
        self.features = features
        self.core = PagedCore()

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        logit_rows: Tensor,
        feature_rows: Tensor,
        attention_rows: Tensor,
        output_rows: Tensor,
        past_lens: Tensor,
        subsequence_begins: Tensor,
        block_indices: Tensor,
        block_indices_begins: Tensor,
        max_context_len: Tensor,
        caches: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        def attend_in(layer: int) -> Attend:
            def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                attended = self.core(
                    *(heads.flatten(-2)[attention_rows] for heads in (queries, keys, values)),
                    caches[2 * layer],
                    caches[2 * layer + 1],
                    past_lens,
                    subsequence_begins,
                    block_indices,
                    block_indices_begins,
                    max_context_len,
                )
                return attended[output_rows].unflatten(-1, (-1, self.target.config.head_size))

            return attend

        x = self.target.embed_tokens(tokens)
        outputs = self.target.run_layers(x, positions, [attend_in(layer) for layer in range(len(self.target.layers))])
        tapped = [(x if tap == EMBEDDING_TAP else outputs[tap])[feature_rows] for tap in self.features.tap_ids]
        logits = self.target.lm_head(self.target.norm(outputs[-1][logit_rows]))
        return logits, self.features(torch.cat(tapped, -1))


def convert_target(target: Target, features: Features) -> ov.Model:
    """Trace the paged target into an OpenVINO graph with named inputs and outputs and placeholders for attention."""
    config = target.config
    longs = [torch.zeros(3, dtype=torch.int64) for _ in range(2)] + [torch.arange(3)] * 4
    tables = [torch.tensor(value, dtype=torch.int32) for value in ([0], [0, 3], [0], [0, 1], 3)]
    caches = [torch.zeros(2, config.kv_heads, KV_BLOCK_SIZE, config.head_size) for _ in range(2 * config.layers)]
    with torch.no_grad():
        model = ov.convert_model(
            PagedTarget(target, features),
            example_input=(*longs, *tables, caches),
            extension=[
                ModuleExtension(
                    PagedCore,
                    _PLACEHOLDER,
                    evaluate=lambda module, *inputs, **_: inputs[0],
                    convert=lambda module, operation, *inputs, **_: operation(*inputs),
                ),
                ConversionExtension(_PLACEHOLDER, _placeholder),
            ],
        )
    names = list(GRAPH_INPUTS)
    for layer in range(config.layers):
        names += [key_cache_name(layer), value_cache_name(layer)]
    for name, port in zip(names, model.inputs, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
    for port in model.inputs[len(GRAPH_INPUTS) :]:
        port.get_node().set_partial_shape(ov.PartialShape([-1, config.kv_heads, KV_BLOCK_SIZE, config.head_size]))
    for name, port in zip(OUTPUTS, model.outputs, strict=True):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()
    return model


def _placeholder(context: Any) -> list[Any]:
    return [PagedAttentionCall([context.get_input(index) for index in range(_PLACEHOLDER_INPUTS)]).output(0)]


def compress(model: ov.Model, precision: str) -> ov.Model:
    """Weights of the matrix products as int8 (symmetric: quicker on CPUs than asymmetric), or as they are."""
    if precision == "fp32":
        return model
    import nncf

    nncf.set_log_level(logging.WARNING)      # it reports the same table for every graph
    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


def save(model: ov.Model, path: str) -> None:
    """Write the graph without rounding its weights to fp16, which OpenVINO does unless told otherwise."""
    ov.save_model(model, path, compress_to_fp16=False)
