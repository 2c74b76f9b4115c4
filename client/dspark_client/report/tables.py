"""The report's tables: one a question, as rows of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspark_client.bench.samples import Percentiles
from dspark_client.report.measured import Measured

ABSENT = "–"


@dataclass(frozen=True)
class Table:
    """A caption, a header and rows of as many cells."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(measured: Sequence[Measured]) -> list[Table]:
    """All that have a row to show."""
    made = [_ratios(measured), _speeds(measured), _latencies(measured), _goodput(measured)]
    return [table for table in made if table.rows]


def _ratios(measured: Sequence[Measured]) -> Table:
    """Tokens/s against plain decoding: a row a policy and domain, a column a level."""
    known = [point for point in measured if point.ratio_to_none is not None and point.series != "none"]
    levels = list(dict.fromkeys(point.level for point in sorted(known, key=_load)))
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for point in known:
        row = rows.setdefault((point.series, point.domain, point.source), {})
        row[point.level] = f"{point.ratio_to_none:.2f}{_spread(point.ratio_to_none_spread)}"
    return Table(
        "Tokens/s against plain decoding", "Median of the ratios to policy none of the same repeat; least and most.",
        ("policy", "domain", "file", *levels),
        tuple((*key, *(row.get(level, ABSENT) for level in levels)) for key, row in sorted(rows.items())),
    )


def _speeds(measured: Sequence[Measured]) -> Table:
    return _table(
        measured, "Throughput and acceptance",
        "τ: tokens a round of one request, bonus included. Verified: drafts of one request in one round.",
        {
            "tokens/s": lambda p: f"{p.tokens_per_second:.1f}{_spread(p.tokens_per_second_spread, 1)}",
            "tokens/s/user": lambda p: _number(p.tokens_per_second_per_user, 1),
            "τ": lambda p: _number(p.tau), "verified": lambda p: _number(p.verified_per_request),
            "repeats": lambda p: ABSENT if p.repeats is None else str(p.repeats),
        },
    )


def _latencies(measured: Sequence[Measured]) -> Table:
    return _table(
        [point for point in measured if point.ttft_ms or point.itl_ms], "Latency (ms)",
        "TTFT: to the first token. ITL: between tokens; tokens of one response share its time.",
        {
            "TTFT p50": lambda p: _percentile(p.ttft_ms, "p50"), "TTFT p99": lambda p: _percentile(p.ttft_ms, "p99"),
            "ITL p50": lambda p: _percentile(p.itl_ms, "p50"), "ITL p99": lambda p: _percentile(p.itl_ms, "p99"),
        },
    )


def _goodput(measured: Sequence[Measured]) -> Table:
    return _table(
        [point for point in measured if point.goodput], "Goodput", "Only the requests that met the goals of the sweep.",
        {
            "requests/s": lambda p: _number(p.goodput and p.goodput.requests_per_second),
            "tokens/s": lambda p: _number(p.goodput and p.goodput.tokens_per_second, 1),
            "share": lambda p: ABSENT if p.goodput is None else f"{p.goodput.share:.0%}",
        },
    )


def _table(
    measured: Sequence[Measured], title: str, note: str, columns: dict[str, Callable[[Measured], str]],
) -> Table:
    rows = tuple(
        (point.series, point.domain, point.level or ABSENT, point.source, *(cell(point) for cell in columns.values()))
        for point in sorted(measured, key=lambda point: (point.source, point.domain, *_load(point), point.series))
    )
    return Table(title, note, ("policy", "domain", "load", "file", *columns), rows)


def _load(point: Measured) -> tuple[float, float]:
    return point.concurrency or 0, point.rate or 0.0


def _number(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def _percentile(found: Percentiles | None, name: str) -> str:
    return ABSENT if found is None else f"{getattr(found, name):.1f}"


def _spread(found: tuple[float, float] | None, digits: int = 2) -> str:
    return "" if found is None else f" ({found[0]:.{digits}f}–{found[1]:.{digits}f})"
