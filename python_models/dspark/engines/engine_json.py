"""engine.json: what an engine folder holds and what it was built from, as typed records."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from dspark.engines.contract import TargetLimits
from dspark.engines.rows import RowRules
from dspark.errors import ConfigurationError

ENGINE_JSON = "engine.json"
ENGINE_GRAPH = "engine.xml"
FORMAT = 1
REBUILD = "run 'dspark build' again"

Record = TypeVar("Record")


@dataclass(frozen=True)
class BuildFacts:
    """What an engine was built from and with; compared, never interpreted."""

    checkpoint: str                  # name of the target's checkpoint
    checkpoint_hash: str             # sha256 of its config and weights
    drafter_hash: str
    precision: str                   # "fp32" | "int8"
    tools: dict[str, str]            # package -> version
    cpu: str                         # the machine the engine was probed on


@dataclass(frozen=True)
class TargetRecord:
    """engine.json of an OpenVINO target."""

    engine: ClassVar[str] = "openvino-target"

    limits: TargetLimits
    layers: int
    kv_heads: int
    head_size: int
    tap_ids: tuple[int, ...]         # layers whose outputs make the features; -1 the embedding
    rows: RowRules                   # how many rows the kernels may see to be exact
    quantise_activations: bool       # false: DYNAMIC_QUANTIZATION_GROUP_SIZE is 0
    exact: bool                      # logits were bit-identical whatever the batch and the chunking
    facts: BuildFacts


def engine_name(folder: Path) -> str:
    """The engine that `folder/engine.json` names. Raises ConfigurationError when there is no readable one."""
    return str(_read(folder)["engine"])


def write_record(folder: Path, record: Any) -> None:
    """Write a record (a dataclass with a class attribute `engine`) as `folder/engine.json`."""
    values = {"format": FORMAT, "engine": record.engine, **dataclasses.asdict(record)}
    (folder / ENGINE_JSON).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def read_record(folder: Path, cls: type[Record]) -> Record:
    """Read `folder/engine.json` as a record of `cls`.

    Raises ConfigurationError when the file is missing, corrupt, of another engine, or has a field missing or mistyped.
    """
    values = _read(folder)
    expected = cls.engine  # type: ignore[attr-defined]
    if values["engine"] != expected:
        raise ConfigurationError(f"{folder / ENGINE_JSON}: engine is {values['engine']!r}, expected {expected!r}")
    return _parse(values, cls, str(folder / ENGINE_JSON))


def read_limits(folder: Path, cls: type[Record]) -> Record:
    """Only the limits in `folder/engine.json`, as TargetLimits or DrafterLimits. Raises ConfigurationError."""
    return _parse(_read(folder).get("limits"), cls, f"{folder / ENGINE_JSON}: limits")


def _read(folder: Path) -> dict[str, Any]:
    path = folder / ENGINE_JSON
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} does not exist: no engine was built here; {REBUILD}") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); {REBUILD}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("engine"), str):
        raise ConfigurationError(f"{path} is not an engine.json of format {FORMAT}; {REBUILD}")
    return values


def _parse(values: Any, cls: type[Record], source: str) -> Record:
    if not isinstance(values, dict):
        raise ConfigurationError(f"{source} must be an object; {REBUILD}")
    hints = get_type_hints(cls)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name not in values:
            if field.default is not dataclasses.MISSING:       # a field that engines of old do not have
                continue
            raise ConfigurationError(f"{source}: {field.name} is missing; {REBUILD}")
        given[field.name] = _parse_value(values[field.name], hints[field.name], f"{source}: {field.name}")
    return cls(**given)


def _parse_value(value: Any, expected: Any, source: str) -> Any:
    if dataclasses.is_dataclass(expected):
        return _parse(value, expected, source)  # type: ignore[arg-type]
    if get_origin(expected) is tuple:
        if not isinstance(value, list):
            raise ConfigurationError(f"{source} must be a list, not {value!r}; {REBUILD}")
        return tuple(_parse_value(item, get_args(expected)[0], source) for item in value)
    kind = get_origin(expected) or expected
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigurationError(f"{source} must be {kind.__name__}, not {value!r}; {REBUILD}")
    return value
