"""curve.json: what `dspark profile` measured of an engine, in the engine folder's root."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dspark.engines.contract import EngineFolder
from dspark.engines.engine_json import ENGINE_JSON, REBUILD
from dspark.engines.machine import cpu_model
from dspark.errors import ConfigurationError

CURVE_FILE = "curve.json"
FORMAT = 1
MEASURE = "run 'dspark profile'"
LARGEST = 1e7                        # no number in the file reaches it, in tokens or seconds

Point = TypeVar("Point", "TargetPoint", "DrafterPoint")


@dataclass(frozen=True)
class TargetPoint:
    """Times of one size of target step."""

    sequences: int
    tokens_per_sequence: float       # mean; the step has sequences * tokens_per_sequence tokens
    context: float                   # mean number of tokens behind a sequence
    count: int
    median_s: float
    spread_s: float                  # interquartile range

    @property
    def tokens(self) -> int:
        """B, all tokens of the step."""
        return round(self.sequences * self.tokens_per_sequence)


@dataclass(frozen=True)
class DrafterPoint:
    """Times of drafter steps for so many sequences, appends of their context included."""

    sequences: int
    count: int
    median_s: float
    spread_s: float                  # interquartile range


@dataclass(frozen=True)
class CurveRecord:
    """All that was measured, of which engine, on which machine."""

    engine: str                      # engine_fingerprint
    machine: str                     # machine_fingerprint
    created: str                     # ISO time
    stable: bool                     # every median is known to within the bound that was asked for
    target: tuple[TargetPoint, ...]
    drafter: tuple[DrafterPoint, ...]

    def write(self, folder: EngineFolder) -> Path:
        """Write curve.json whole or not at all, and return its path. Raises ConfigurationError."""
        path = folder.root / CURVE_FILE
        partial = path.with_suffix(".json.new")
        try:
            partial.write_text(json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n", "utf-8")
            os.replace(partial, path)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error}") from error
        return path

    @staticmethod
    def read(folder: EngineFolder) -> CurveRecord:
        """Raises ConfigurationError for a file that is missing, of another form, or holds an impossible value."""
        path = folder.root / CURVE_FILE
        try:
            values = json.loads(path.read_text("utf-8"))
        except FileNotFoundError as error:
            raise ConfigurationError(f"{path} does not exist: this engine was not measured here; {MEASURE}") from error
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} cannot be read ({error}); {MEASURE} again") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ConfigurationError(f"{path} is not a throughput curve of format {FORMAT}; {MEASURE} again")
        try:
            return CurveRecord(
                engine=_text(values, "engine"),
                machine=_text(values, "machine"),
                created=_text(values, "created"),
                stable=_flag(values, "stable"),
                target=_points(values, "target", TargetPoint),
                drafter=_points(values, "drafter", DrafterPoint),
            )
        except ValueError as error:
            raise ConfigurationError(f"{path}: {error}; {MEASURE} again") from error


def engine_fingerprint(folder: EngineFolder) -> str:
    """The sha256 of both engine.json, which identifies a built engine. Raises ConfigurationError."""
    digest = hashlib.sha256()
    for part in (folder.target, folder.drafter):
        try:
            digest.update((part / ENGINE_JSON).read_bytes())
        except OSError as error:
            raise ConfigurationError(f"{part / ENGINE_JSON} cannot be read ({error}); {REBUILD}") from error
    return digest.hexdigest()


def machine_fingerprint(threads: int) -> str:
    """What a step's time depends on besides the engine; threads: of the target, 0 for all cores."""
    cores = len(os.sched_getaffinity(0))
    return f"{cpu_model()}, {cores} cores, {threads or cores} threads of the target"


def _text(values: dict[str, Any], name: str) -> str:
    if not isinstance(values.get(name), str):
        raise ValueError(f"{name} must be a string, not {values.get(name)!r}")
    return str(values[name])


def _flag(values: dict[str, Any], name: str) -> bool:
    if not isinstance(values.get(name), bool):
        raise ValueError(f"{name} must be true or false, not {values.get(name)!r}")
    return bool(values[name])


def _points(values: dict[str, Any], name: str, cls: type[Point]) -> tuple[Point, ...]:
    """The list of points of that name. Raises ValueError saying which is wrong and why."""
    found = values.get(name)
    if not isinstance(found, list) or not found:
        raise ValueError(f"{name} must be a list of measured steps, not {found!r}")
    points = tuple(_point(item, f"{name}[{i}]", cls) for i, item in enumerate(found))
    sizes = [tuple(dataclasses.astuple(point)[:-3]) for point in points]
    if repeated := next((size for i, size in enumerate(sizes) if size in sizes[:i]), None):
        raise ValueError(f"{name} holds the size {repeated} twice")
    return points


def _point(item: Any, source: str, cls: type[Point]) -> Point:
    if not isinstance(item, dict):
        raise ValueError(f"{source} must be an object, not {item!r}")
    numbers: dict[str, float] = {}
    for field in dataclasses.fields(cls):
        value = item.get(field.name)
        kinds = (int,) if field.type == "int" else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            expected = "whole number" if kinds == (int,) else "number"
            raise ValueError(f"{source}: {field.name} must be a {expected}, not {value!r}")
        least = 0 if field.name in ("context", "spread_s") else 1 if field.name != "median_s" else None
        if not -LARGEST < value < LARGEST or (value < least if least is not None else value <= 0):
            allowed = "positive" if least is None else f"at least {least}"
            raise ValueError(f"{source}: {field.name} must be {allowed} and below {LARGEST:g}, not {value!r:.20}")
        numbers[field.name] = value
    return cls(**numbers)  # type: ignore[arg-type]
