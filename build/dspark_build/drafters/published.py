"""The published config.json of a drafter, read and written (DeepSpec's form).

Beyond the target's own fields: `block_size`, `mask_token_id`, `target_layer_ids`, `num_target_layers`, `num_anchors`,
`markov_rank`, `markov_head_type`, `enable_confidence_head`, `confidence_head_with_markov`. One field is ours:
`embeddings_from_target`, true where embed_tokens and lm_head are left out of the weights. A drafter over a part of the
vocabulary has `draft_vocab_size`, and the tensor d2t that says which part, as the speculators packaging has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.errors import ConfigurationError

from dspark_build.models.config import ModelConfig, parse_config
from dspark_build.models.drafter_config import DrafterConfig

DRAFTER_ARCHITECTURES = {"LlamaDSparkModel": "llama", "Qwen3DSparkModel": "qwen3"}
EMBEDDINGS_FROM_TARGET = "embeddings_from_target"

# A field that only another packaging has, and what to say about it.
FOREIGN_FIELDS = {
    "aux_hidden_state_layer_ids": "the 'speculators' packaging, which has speculators_model_type",
    "transformer_layer_config": "the 'speculators' packaging, which has speculators_model_type",
    "dspark_config": "a packaging that nests the drafter's fields, which is not supported",
}


def parse_drafter_config(values: Mapping[str, Any], source: str, target: ModelConfig) -> DrafterConfig:
    """The DrafterConfig of a published config.json's fields, checked against the target's.

    Raises ConfigurationError naming the field that is missing, foreign or does not fit the target.
    """
    _refuse_foreign(values, source)
    model = parse_config(values, source, DRAFTER_ARCHITECTURES)
    _check_against_target(model, target, source)
    rank = _integer(values, "markov_rank", source, 0)
    confidence = bool(values.get("enable_confidence_head", False))
    try:
        config = DrafterConfig(
            model=model,
            target_layers=_integer(values, "num_target_layers", source, target.layers),
            target_layer_ids=_layer_ids(values, source),
            block_size=_integer(values, "block_size", source),
            mask_token_id=_integer(values, "mask_token_id", source),
            markov_head_type=_head_type(values, rank),
            markov_rank=rank,
            confidence_head=confidence,
            confidence_with_markov=confidence and bool(values.get("confidence_head_with_markov", False)),
            anchors_per_sequence=_integer(values, "num_anchors", source, 512),
            reduced_vocabulary=_reduced_vocabulary(values, source, target),
        )
    except ConfigurationError as error:
        raise error if str(error).startswith(source) else ConfigurationError(f"{source}: {error}") from error
    if config.target_layers != target.layers:
        raise ConfigurationError(
            f"{source}: num_target_layers is {config.target_layers}, but the target has {target.layers} layers"
        )
    return config


def published_fields(
    config: DrafterConfig, target_fields: Mapping[str, Any], embeddings_from_target: bool
) -> dict[str, Any]:
    """The config.json of a drafter: the target's fields, overlaid with the drafter's."""
    names = {flavour: name for name, flavour in DRAFTER_ARCHITECTURES.items()}
    fields = dict(target_fields) | {
        "architectures": [names[config.model.flavour]],
        "num_hidden_layers": config.model.layers,
        "layer_types": ["full_attention"] * config.model.layers,
        "tie_word_embeddings": False,
        "num_target_layers": config.target_layers,
        "target_layer_ids": list(config.target_layer_ids),
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "num_anchors": config.anchors_per_sequence,
        "markov_rank": config.markov_rank,
        "enable_confidence_head": config.confidence_head,
    }
    if config.markov_rank:
        fields["markov_head_type"] = config.markov_head_type
    if config.confidence_head:
        fields["confidence_head_with_markov"] = config.confidence_with_markov
    if config.reduced_vocabulary is not None:
        fields["draft_vocab_size"] = config.reduced_vocabulary
    if embeddings_from_target:
        fields[EMBEDDINGS_FROM_TARGET] = True
    return fields


def _reduced_vocabulary(values: Mapping[str, Any], source: str, target: ModelConfig) -> int | None:
    size = _integer(values, "draft_vocab_size", source, target.vocabulary_size)
    return None if size == target.vocabulary_size else size


def _refuse_foreign(values: Mapping[str, Any], source: str) -> None:
    for field, packaging in FOREIGN_FIELDS.items():
        if field in values:
            raise ConfigurationError(
                f"{source}: field {field} belongs to {packaging}; "
                f"expected a DeepSpec checkpoint with architectures {' or '.join(DRAFTER_ARCHITECTURES)}"
            )


def _check_against_target(model: ModelConfig, target: ModelConfig, source: str) -> None:
    for field, ours, theirs in (
        ("vocab_size", model.vocabulary_size, target.vocabulary_size),
        ("hidden_size", model.hidden_size, target.hidden_size),
    ):
        if ours != theirs:
            raise ConfigurationError(f"{source}: {field} is {ours}, but the target's is {theirs}")


def _integer(values: Mapping[str, Any], field: str, source: str, default: int | None = None) -> int:
    value = values.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{source}: {field} must be an integer, not {value!r}")
    return value


def _layer_ids(values: Mapping[str, Any], source: str) -> tuple[int, ...]:
    ids = values.get("target_layer_ids")
    if not isinstance(ids, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise ConfigurationError(f"{source}: target_layer_ids must be a list of integers, not {ids!r}")
    return tuple(ids)


def _head_type(values: Mapping[str, Any], rank: int) -> str:
    """Rank 0 is no head, whatever the type says: so the published code reads it."""
    return str(values.get("markov_head_type")) if rank else "none"
