"""The SpecForge packaging of a drafter, put into the published form.

The drafter's own fields are nested in `dflash_config`, the backbone's are those of a Qwen3 config. The target's
embedding and head are not stored. Old checkpoints keep the heads' tensors below `logit_head`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.errors import ConfigurationError

from dspark_build.drafters.foreign import refuse_unknown, require, take_object

MARK = "dflash_config"
NOTE = "SpecForge packaging: fields nested in dflash_config"
ARCHITECTURE = "DSparkDraftModel"
ARCHITECTURES = (ARCHITECTURE, "Qwen3DSparkModel")     # the second where it was prepared for another server
NESTED = (
    "target_layer_ids", "mask_token_id", "block_size", "num_target_layers", "num_anchors", "markov_rank",
    "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
)  # fmt: skip
# Values under which the drafter is the one of this project; everything else is another model.
ALLOWED = {
    "projector_type": ("dspark",),
    "attention_mode": ("gqa", "mha"),
    "causal": (False,),
    "use_swa": (False,),
    "shift_label": (True,),
    "sample_from_anchor": (True,),
}
TRAINING_ONLY = ("confidence_head_alpha", "ce_loss_alpha", "l1_loss_alpha", "loss_decay_gamma", "swa_window_size")
HEADS_PREFIX = "logit_head."
LEFT_TO_THE_TARGET = ("embed_tokens.weight", "lm_head.weight")


def translate_fields(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The fields of the published config.json. Raises ConfigurationError naming the field that is not understood."""
    names = values.get("architectures") or []
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ConfigurationError(f"{source}: architectures is {names}; expected {' or '.join(ARCHITECTURES)}")
    require(values, "model_type", ("qwen3", "dspark"), source)
    require(values, "is_causal", (False,), source)
    nested = take_object(values, MARK, source)
    refuse_unknown(nested, (*NESTED, *ALLOWED, *TRAINING_ONLY), source, f"{MARK}.")
    for field, allowed in ALLOWED.items():
        require(nested, field, allowed, source, f"{MARK}.")
    fields = {field: value for field, value in values.items() if field != MARK}
    for field in NESTED:
        if nested.get(field) is None:
            continue
        if fields.get(field) not in (None, nested[field]):
            raise ConfigurationError(
                f"{source}: {field} is {fields[field]!r}, but {MARK}.{field} is {nested[field]!r}"
            )
        fields[field] = nested[field]
    if fields.get("draft_vocab_size") is None:
        fields.pop("draft_vocab_size", None)
    return fields | {"architectures": ["Qwen3DSparkModel"]}


def translate_name(name: str) -> str:
    """The published name of a tensor."""
    return name.removeprefix(HEADS_PREFIX)
