"""Reading results: our own, perf_analyzer's profile export and genai-perf's. The kind of a file is what it contains."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError

from dspark_client.bench.goals import Goodput
from dspark_client.bench.samples import Percentiles
from dspark_client.report.genai_perf import is_genai_perf, read_genai_perf
from dspark_client.report.measured import ALL_DOMAINS, Measured, Source
from dspark_client.report.perf_analyzer import is_perf_analyzer, read_perf_analyzer

Document = Mapping[str, Any]


def read_sources(paths: Sequence[Path]) -> list[Source]:
    """One source a file. Raises ConfigurationError naming a file that cannot be read or is of no known kind."""
    names = _names(paths)
    return [_read(path, name) for path, name in zip(paths, names, strict=True)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The files' names; with their folders where two are called the same."""
    short = [path.name for path in paths]
    return [str(path) if short.count(path.name) > 1 else path.name for path in paths]


def _read(path: Path, name: str) -> Source:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    readers: list[tuple[Callable[[Any], bool], Callable[[Document, str], Source]]] = [
        (_is_bench, _read_bench), (is_perf_analyzer, read_perf_analyzer), (is_genai_perf, read_genai_perf),
    ]
    for recognises, read in readers:
        if recognises(document):
            try:
                return read(document, name)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise ConfigurationError(f"{path} is damaged, or of another version: {error!r}") from error
    raise ConfigurationError(
        f"{path} is no result that is known here: JSON of 'dspark bench', of perf_analyzer --profile-export-file or of "
        "genai-perf is expected"
    )


def _is_bench(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("points"), list)


def _read_bench(document: Document, name: str) -> Source:
    settings = document.get("settings", {})
    kind = "simulation" if settings.get("simulated") else "dspark bench"
    return Source(
        name, kind, tuple(_point(values, name) for values in document["points"]),
        tuple((key, str(value)) for key, value in settings.items() if value is not None),
    )


def _point(values: Document, name: str) -> Measured:
    def several(key: str, kind: Callable[..., Any]) -> Any:
        found = values.get(key)
        return None if found is None else kind(**found)

    def pair(key: str) -> tuple[float, float] | None:
        found = values.get(key)
        return None if found is None else (float(found[0]), float(found[1]))

    return Measured(
        source=name, series=values["policy"], concurrency=values.get("concurrency"), rate=values.get("rate"),
        domain=values.get("domain", ALL_DOMAINS), tokens_per_second=float(values["tokens_per_second"]),
        tokens_per_second_spread=pair("tokens_per_second_spread"),
        tokens_per_second_per_user=values.get("tokens_per_second_per_user"),
        ttft_ms=several("ttft_ms", Percentiles), itl_ms=several("itl_ms", Percentiles), tau=values.get("tau"),
        verified_per_request=values.get("verified_per_request"), ratio_to_none=values.get("ratio_to_none"),
        ratio_to_none_spread=pair("ratio_to_none_spread"), goodput=several("goodput", Goodput),
        repeats=values.get("repeats"),
    )
