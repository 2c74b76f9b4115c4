"""The `speculators` packaging of a drafter, put into the published form.

The backbone's fields lie in `transformer_layer_config`; `aux_hidden_state_layer_ids` are target_layer_ids + 1. Tensor
names are the published ones. The target's embedding may be left out, its head only where the vocabulary is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.errors import ConfigurationError

from dspark_build.drafters.foreign import refuse_unknown, require, take_object

MARK = "speculators_model_type"
NOTE = "speculators packaging: aux_hidden_state_layer_ids are target_layer_ids + 1"
ARCHITECTURES = {"qwen3": "Qwen3DSparkModel", "llama": "LlamaDSparkModel"}     # by the backbone's model_type
SAME_IN_BOTH = (
    "block_size", "mask_token_id", "draft_vocab_size", "markov_rank", "markov_head_type", "enable_confidence_head",
    "confidence_head_with_markov", "tie_word_embeddings",
)  # fmt: skip
TRANSLATED = (MARK, "transformer_layer_config", "aux_hidden_state_layer_ids", "sample_from_anchor",
              "speculators_config", "target_hidden_size", "projector_type", "shift_label")  # fmt: skip
# Says how it was made or is loaded elsewhere, or configures a part that is checked to be off.
WITHOUT_EFFECT = (
    "architectures", "auto_map", "model_type", "dtype", "torch_dtype", "transformers_version", "speculators_version",
    "num_anchors", "max_anchors", "ce_loss_alpha", "l1_loss_alpha", "confidence_head_alpha", "loss_decay_gamma", "auf",
    "sliding_window_non_causal", "topk_layers", "topk_local_window", "indexer_heads", "indexer_head_dim",
    "pure_draft_prefix_len", "emb_dim", "gru_hidden_dim", "lambda_base_start", "lambda_base_decay_ratio",
)  # fmt: skip
# What only training needs: the target's own head and norm, and a mask vector that the mask token replaces.
UNUSED_TENSORS = ("verifier_lm_head.weight", "verifier_norm.weight", "mask_embedding")


def translate_fields(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The fields of the published config.json. Raises ConfigurationError naming the field that is not understood."""
    require(values, MARK, ("dspark",), source)
    refuse_unknown(values, (*SAME_IN_BOTH, *TRANSLATED, *WITHOUT_EFFECT), source)
    backbone = take_object(values, "transformer_layer_config", source)
    kind = str(backbone.get("model_type", "qwen3"))
    if kind not in ARCHITECTURES:
        raise ConfigurationError(
            f"{source}: transformer_layer_config.model_type {kind!r} is not supported, only {', '.join(ARCHITECTURES)}"
        )
    require(values, "target_hidden_size", (backbone.get("hidden_size"),), source)
    require(values, "projector_type", ("dflash", "dspark"), source)
    require(values, "shift_label", (False,), source)
    fields = dict(backbone) | {field: values[field] for field in SAME_IN_BOTH if values.get(field) is not None}
    fields |= {
        "architectures": [ARCHITECTURES[kind]],
        "target_layer_ids": _layer_ids(values, source),
        "block_size": _block_size(values, source),
    }
    return fields


def translate_name(name: str) -> str | None:
    """The published name of a tensor; None for one that drafting does not need."""
    return None if name in UNUSED_TENSORS else name


def left_to_the_target(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The tensors that are not stored, given the translated fields: the head over a part of V is."""
    size = fields.get("vocab_size")
    whole = fields.get("draft_vocab_size", size) == size
    return ("embed_tokens.weight", "lm_head.weight") if whole else ("embed_tokens.weight",)


def _layer_ids(values: Mapping[str, Any], source: str) -> list[int]:
    ids = values.get("aux_hidden_state_layer_ids")
    if not isinstance(ids, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise ConfigurationError(f"{source}: aux_hidden_state_layer_ids must be a list of integers, not {ids!r}")
    return [i - 1 for i in ids]


def _block_size(values: Mapping[str, Any], source: str) -> Any:
    """gamma; refused where the anchor's own position drafts nothing, which would shift every draft by one token."""
    require(values, "sample_from_anchor", (True,), source)
    proposed = _speculative_tokens(values, source)
    size = values.get("block_size")
    if size is None:
        return proposed
    if values.get("sample_from_anchor") is None and proposed not in (None, size):
        raise ConfigurationError(
            f"{source}: sample_from_anchor is missing, and speculative_tokens {proposed} of block_size {size} do not "
            "tell whether the anchor's position drafts a token; only blocks in which it does are supported"
        )
    return size


def _speculative_tokens(values: Mapping[str, Any], source: str) -> Any:
    """What the first proposal method says; None where nothing does."""
    if values.get("speculators_config") is None:
        return None
    proposals = take_object(values, "speculators_config", source)
    require(proposals, "algorithm", ("dspark",), source, "speculators_config.")
    methods = proposals.get("proposal_methods") or [{}]
    if not isinstance(methods, list) or not isinstance(methods[0], dict):
        raise ConfigurationError(f"{source}: speculators_config.proposal_methods must be a list of objects")
    return methods[0].get("speculative_tokens")
