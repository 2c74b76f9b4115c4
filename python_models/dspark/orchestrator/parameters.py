"""A request's parameters from their three sources: tensors, the vLLM back end's JSON, Triton's request parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dspark.errors import InvalidRequestError
from dspark.orchestrator import fields as kinds
from dspark.orchestrator.fields import Array


@dataclass(frozen=True)
class RequestTensors:
    """The inputs of the `dspark` model as they came, None where absent, and Triton's own request parameters as JSON."""

    text_input: Array | None = None
    input_ids: Array | None = None
    messages: Array | None = None
    max_tokens: Array | None = None
    stream: Array | None = None
    exclude_input_in_output: Array | None = None
    return_log_probs: Array | None = None
    temperature: Array | None = None
    top_k: Array | None = None
    top_p: Array | None = None
    min_p: Array | None = None
    repetition_penalty: Array | None = None
    seed: Array | None = None
    stop_words: Array | None = None
    stop_token_ids: Array | None = None
    ignore_eos: Array | None = None
    max_draft_tokens: Array | None = None
    min_draft_tokens: Array | None = None
    policy: Array | None = None
    sampling_parameters: Array | None = None
    parameters: str = "{}"


@dataclass(frozen=True)
class Parameters:
    """The parameters a request names; None where it is silent."""

    max_tokens: int | None = None
    stream: bool | None = None
    exclude_input_in_output: bool | None = None
    return_log_probs: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_words: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    max_draft_tokens: int | None = None
    min_draft_tokens: int | None = None
    policy: str | None = None


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "str": kinds.text, "int": kinds.integer, "float": kinds.number, "bool": kinds.flag,
    "tuple[str, ...]": kinds.texts, "tuple[int, ...]": kinds.integers,
}
_KINDS = {field.name: str(field.type).removesuffix(" | None") for field in fields(Parameters)}


def read_parameters(raw: RequestTensors) -> Parameters:
    """Gather what is given; raises InvalidRequestError for an unknown name, a wrong kind, or a name given twice."""
    tensors = {name: getattr(raw, name) for name in _KINDS}
    values = {
        name: kinds.from_tensor(name, tensor, is_list=_KINDS[name].startswith("tuple"))
        for name, tensor in tensors.items() if tensor is not None
    }
    if raw.sampling_parameters is not None:
        source = kinds.from_tensor("sampling_parameters", raw.sampling_parameters, is_list=False)
        _merge(values, _json_parameters("sampling_parameters", kinds.text("sampling_parameters", source)))
    ours = {key: value for key, value in json.loads(raw.parameters).items() if not key.startswith("triton_")}
    _merge(values, _translate("request parameters", ours))
    return Parameters(**{name: _READERS[_KINDS[name]](name, value) for name, value in values.items()})


def _json_parameters(where: str, source: str) -> dict[str, Any]:
    try:
        found = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequestError(f'{where}: a JSON object such as {{"max_tokens": 64}} is expected')
    return _translate(where, found)


def _translate(where: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's names and conventions in ours; null counts as absent."""
    known = sorted([*_KINDS, "stop", "n", "logprobs"])
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise InvalidRequestError(f"{where}: {unknown[0]!r} is not known; known: {', '.join(known)}")
    values = {name: value for name, value in found.items() if value is not None}
    if kinds.integer("n", values.pop("n", 1)) != 1:
        raise InvalidRequestError(f"{where}: n must be 1; send one request for every sequence wanted")
    if "stop" in values:
        _merge(values, {"stop_words": values.pop("stop")})
    if "logprobs" in values:                         # vLLM: the chosen token's log-probability, and that of n more
        wanted = values.pop("logprobs")
        if not isinstance(wanted, bool):
            wanted = kinds.within("logprobs", kinds.integer("logprobs", wanted), 0, 1) >= 0
        _merge(values, {"return_log_probs": wanted})
    if values.get("top_k") in (-1, "-1"):            # vLLM's "off"
        values["top_k"] = 0
    return values


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    twice = sorted(set(values) & set(more))
    if twice:
        raise InvalidRequestError(f"{twice[0]} is given twice; give it once")
    values.update(more)
