"""A contract record as named arrays (Triton tensors), and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import (
    DrafterResult,
    DrafterStep,
    SamplingArrays,
    TargetResult,
    TargetStep,
)
from dspark.errors import EngineError

Array = npt.NDArray[Any]
ContractRecord = TargetStep | TargetResult | DrafterStep | DrafterResult
Record = TypeVar("Record", bound=TargetStep | TargetResult | DrafterStep | DrafterResult)

_DTYPES: dict[str, type[np.generic]] = {"Int32": np.int32, "Float32": np.float32, "Bool": np.bool_}
_NESTED = {"SamplingArrays": SamplingArrays}

# The axes of every field, as in the contract. Axes of one name have one length within a record.
_AXES: dict[type, dict[str, str]] = {
    SamplingArrays: {"temperature": "R", "top_k": "R", "top_p": "R", "min_p": "R", "repetition_penalty": "R"},
    TargetStep: {
        "slots": "R",
        "positions": "R",
        "token_counts": "R",
        "draft_counts": "R",
        "samples": "R",
        "wants_features": "R",
        "wants_log_probs": "R",
        "tokens": "T",
        "draft_ids": "D K",
        "draft_probs": "D K",
        "uniforms": "R gamma+1",
        "noise_keys": "R gamma+1",
        "coupled": "R",
        "released": "F",
    },
    TargetResult: {
        "accepted": "R",
        "next_tokens": "R",
        "feature_counts": "R",
        "features": "A feature_size",
        "log_probs": "R gamma+1",
    },
    DrafterStep: {
        "slots": "R",
        "anchors": "R",
        "positions": "R",
        "context_counts": "R",
        "drafts": "R",
        "context": "A feature_size",
        "temperatures": "R",
        "uniforms": "R gamma",
        "noise_keys": "R gamma",
        "coupled": "R",
    },
    DrafterResult: {
        "tokens": "R gamma",
        "confidence_logits": "R gamma",
        "draft_ids": "R gamma K",
        "draft_probs": "R gamma K",
    },
}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Name, type and axes of one array of a record."""

    name: str
    dtype: type[np.generic]
    axes: tuple[str, ...]


def tensor_specs(cls: type[Any]) -> tuple[TensorSpec, ...]:
    """The arrays of a record in order; the fields of a nested record carry its field's name, `sampling_temperature`."""
    return tuple(_specs(cls, ""))


def encode(record: ContractRecord) -> dict[str, Array]:
    """A record's arrays by name, contiguous. Raises EngineError when they contradict the contract."""
    arrays = {spec.name: np.ascontiguousarray(_value(record, spec.name)) for spec in tensor_specs(type(record))}
    check(type(record), arrays)
    return arrays


def decode(cls: type[Record], arrays: Mapping[str, Array]) -> Record:
    """The record that named arrays stand for.

    Raises EngineError naming the array that is missing, unknown, of another type or rank, or whose axis has another
    length than the same axis of another array.
    """
    check(cls, arrays)
    return _build(cls, arrays, "")  # type: ignore[no-any-return]


def check(cls: type[Any], arrays: Mapping[str, Array]) -> None:
    """Raise EngineError when arrays are not what `cls` consists of (see `decode`)."""
    specs = tensor_specs(cls)
    unknown = sorted(set(arrays) - {spec.name for spec in specs})
    if unknown:
        raise EngineError(f"{cls.__name__} has no array {unknown[0]!r}")
    seen: dict[str, tuple[int, str]] = {}
    for spec in specs:
        if spec.name not in arrays:
            raise EngineError(f"{cls.__name__}: {spec.name} is missing")
        array = arrays[spec.name]
        if array.dtype != spec.dtype:
            raise EngineError(f"{cls.__name__}: {spec.name} is {array.dtype}, expected {np.dtype(spec.dtype)}")
        if array.ndim != len(spec.axes):
            raise EngineError(
                f"{cls.__name__}: {spec.name} has shape {list(array.shape)}, expected [{', '.join(spec.axes)}]"
            )
        for axis, length in zip(spec.axes, array.shape, strict=True):
            known, first = seen.setdefault(axis, (length, spec.name))
            if known != length:
                raise EngineError(
                    f"{cls.__name__}: {spec.name} has {axis} = {length}, but {first} has {axis} = {known}"
                )


def _specs(cls: type, prefix: str) -> Iterator[TensorSpec]:
    for field in dataclasses.fields(cls):
        if field.type in _NESTED:
            yield from _specs(_NESTED[str(field.type)], f"{prefix}{field.name}_")
        else:
            yield TensorSpec(prefix + field.name, _DTYPES[str(field.type)], tuple(_AXES[cls][field.name].split()))


def _value(record: Any, name: str) -> Any:
    for field in dataclasses.fields(record):
        if field.name == name:
            return getattr(record, name)
        if field.type in _NESTED and name.startswith(f"{field.name}_"):
            return _value(getattr(record, field.name), name.removeprefix(f"{field.name}_"))
    raise AttributeError(name)


def _build(cls: type, arrays: Mapping[str, Array], prefix: str) -> Any:
    return cls(
        **{
            field.name: _build(_NESTED[str(field.type)], arrays, f"{prefix}{field.name}_")
            if field.type in _NESTED
            else arrays[prefix + field.name]
            for field in dataclasses.fields(cls)
        }
    )
