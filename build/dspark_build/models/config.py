"""The shape of a Llama or Qwen3 model, read from its Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError

TARGET_ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of one decoder; flavour "qwen3" differs from "llama" only by the norm on queries and keys."""

    flavour: str                     # "llama" | "qwen3"
    vocabulary_size: int             # V
    hidden_size: int                 # d
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    max_positions: int
    rope_theta: float
    norm_epsilon: float
    tied_head: bool                  # lm_head shares the embedding's weight

    @property
    def qk_norm(self) -> bool:
        return self.flavour == "qwen3"

    @staticmethod
    def read(folder: Path, architectures: Mapping[str, str] = TARGET_ARCHITECTURES) -> ModelConfig:
        """Read `folder/config.json`. Raises ConfigurationError when it is missing, malformed or unsupported."""
        return parse_config(read_json(folder / "config.json"), str(folder / "config.json"), architectures)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ConfigurationError when there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} must hold a JSON object")
    return values


def parse_config(
    values: Mapping[str, Any], source: str, architectures: Mapping[str, str] = TARGET_ARCHITECTURES
) -> ModelConfig:
    """Turn the fields of a config.json into a ModelConfig.

    `architectures` maps the accepted class names to their flavour. Raises ConfigurationError naming the field that is
    missing, or that asks for something this definition does not compute.
    """
    names = values.get("architectures") or []
    if len(names) != 1 or names[0] not in architectures:
        raise ConfigurationError(f"{source}: architectures is {names}; supported: {', '.join(architectures)}")
    _refuse_unsupported(values, source)

    def number(field: str, default: float | None = None) -> Any:
        value = values.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigurationError(f"{source}: {field} must be a positive number, not {value!r}")
        return value

    heads = number("num_attention_heads")
    config = ModelConfig(
        flavour=architectures[names[0]],
        vocabulary_size=number("vocab_size"),
        hidden_size=number("hidden_size"),
        intermediate_size=number("intermediate_size"),
        layers=number("num_hidden_layers"),
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_size=number("head_dim") if values.get("head_dim") else number("hidden_size") // heads,
        max_positions=number("max_position_embeddings"),
        rope_theta=float(_rope(values).get("rope_theta") or number("rope_theta", 10000.0)),
        norm_epsilon=float(number("rms_norm_eps", 1e-6)),
        tied_head=bool(values.get("tie_word_embeddings", False)),
    )
    if config.heads % config.kv_heads:
        raise ConfigurationError(
            f"{source}: num_attention_heads {config.heads} is not a multiple of num_key_value_heads {config.kv_heads}"
        )
    return config


def _rope(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values.get("rope_parameters") or values.get("rope_scaling") or {}


def _refuse_unsupported(values: Mapping[str, Any], source: str) -> None:
    def refuse(field: str, allowed: str) -> None:
        raise ConfigurationError(f"{source}: {field} {values[field]!r} is not supported, only {allowed}")

    for field in ("rope_scaling", "rope_parameters"):
        rope = values.get(field) or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            refuse(field, "rope_type 'default'")
    if values.get("partial_rotary_factor", 1) != 1 or _rope(values).get("partial_rotary_factor", 1) != 1:
        raise ConfigurationError(f"{source}: partial_rotary_factor must be 1")
    if values.get("hidden_act", "silu") != "silu":
        refuse("hidden_act", "'silu'")
    for field in ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config"):
        if values.get(field):
            refuse(field, "models without it")
    if values.get("sliding_window") and values.get("use_sliding_window", True):
        refuse("sliding_window", "full attention")
    if any(kind != "full_attention" for kind in values.get("layer_types") or []):
        refuse("layer_types", "full_attention")
