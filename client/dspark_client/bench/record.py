"""A sweep's file: written anew after every sample, so that what was measured outlives any interruption."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError

from dspark_client.bench.counters import Counters
from dspark_client.bench.goals import Goodput
from dspark_client.bench.plan import Run
from dspark_client.bench.points import Point, summarise
from dspark_client.bench.samples import Percentiles, Sample


@dataclass(frozen=True)
class SweepSettings:
    """What all samples of a file have in common; a sweep goes on only where all of it is the same."""

    engine: str
    machine: str
    prompts: int
    prompts_hash: str
    max_tokens: int
    temperature: float
    ignore_eos: bool
    seed: int
    requests_per_stream: int
    rate_seconds: float
    min_requests: int
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    verification: str = "standard"   # of our own server; one at an address has its own


@dataclass(frozen=True)
class SweepReport:
    """The result, in the names of its JSON; `missing` counts the runs that were planned and not measured."""

    points: list[Point]
    settings: SweepSettings
    missing: int
    samples: list[Sample]


class SweepFile:
    """The samples of a sweep, kept in a file where one is named. Takes up what an earlier sweep left there.

    Raises ConfigurationError where the file holds something else, or a sweep with other settings.
    """

    def __init__(self, path: Path | None, settings: SweepSettings) -> None:
        self._path = path
        self._settings = settings
        self._samples = _read(path, settings) if path is not None and path.exists() else []

    @property
    def measured(self) -> set[Run]:
        """The runs that need not be run again."""
        return {sample.run for sample in self._samples}

    def add(self, sample: Sample, planned: Sequence[Run]) -> None:
        """Keep a sample. Raises ConfigurationError where the file cannot be written."""
        self._samples.append(sample)
        self.save(planned)

    def save(self, planned: Sequence[Run]) -> SweepReport:
        """All samples, those of an earlier sweep included, as they are now written to the file."""
        missing = len(set(planned) - self.measured)
        report = SweepReport(summarise(self._samples), self._settings, missing, list(self._samples))
        if self._path is not None:
            write_atomically(self._path, to_json(report))
        return report


def to_json(result: Any) -> str:
    """A result record as JSON."""
    return json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False) + "\n"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole, so that it is never half-written. Raises ConfigurationError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error


def _read(path: Path, settings: SweepSettings) -> list[Sample]:
    try:
        found = json.loads(path.read_text("utf-8"))
        earlier = SweepSettings(**found["settings"])
        samples = [_sample(values) for values in found["samples"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} exists and is not a sweep that could be gone on with ({error!r}): name another file"
        ) from error
    for field in dataclasses.fields(SweepSettings):
        before, now = getattr(earlier, field.name), getattr(settings, field.name)
        if before != now:
            raise ConfigurationError(
                f"{path} holds a sweep with {field.name} {before!r}, this one has {now!r}: give the same options to go "
                "on with it, or name another file"
            )
    return samples


def _sample(values: Mapping[str, Any]) -> Sample:
    kinds = {"run": Run, "ttft_ms": Percentiles, "itl_ms": Percentiles, "goodput": Goodput, "counters": Counters}
    return Sample(**{
        name: kinds[name](**value) if name in kinds and value is not None else value for name, value in values.items()
    })
