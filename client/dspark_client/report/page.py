"""`dspark report`: measurements of one or more files as one page of HTML that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dspark.errors import ConfigurationError
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dspark_client.report.figures import budget, pareto, speed
from dspark_client.report.measured import ALL_DOMAINS, Measured, Source
from dspark_client.report.sources import read_sources
from dspark_client.report.tables import tables
from dspark_client.reporting import write

TEMPLATE = "page.html.jinja"


@dataclass(frozen=True)
class Figure:
    """A drawing, and what it shows."""

    caption: str
    svg: Markup


def write_report(results: Sequence[Path], output: Path) -> None:
    """Read, draw and write. Raises ConfigurationError for an unknown file, or where the page cannot be written."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("matplotlib is missing, which a report needs: run 'make setup'")
    write(output, render(read_sources(results)))


def render(sources: Sequence[Source]) -> str:
    """The page."""
    measured = [point for source in sources for point in source.measured]
    environment = Environment(
        loader=PackageLoader("dspark_client.report", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        sources=sources, figures=_figures(measured), tables=tables(measured)
    )


def _figures(measured: Sequence[Measured]) -> list[Figure]:
    """Three for every domain."""
    kinds = (
        ("Throughput against speed a user (the paper's figure 7); numbers are the load", pareto),
        ("Verification budget (the paper's figure 8)", budget),
        ("Throughput over concurrency; bands are the least and the most of the repeats", speed),
    )
    found = []
    for domain in dict.fromkeys(point.domain for point in measured):
        here = [point for point in measured if point.domain == domain]
        name = "all domains" if domain == ALL_DOMAINS else domain
        found.extend(
            Figure(f"{caption}: {name}.", Markup(svg)) for caption, draw in kinds if (svg := draw(here, name))
        )
    return found
