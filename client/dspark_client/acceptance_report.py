"""An acceptance report for people: tables in Markdown, and acceptance by position as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from dspark.errors import ConfigurationError

from dspark_client.acceptance import Acceptance, AcceptanceReport

ABSENT = "–"


def markdown(report: AcceptanceReport) -> str:
    """Tables of data sets, domains and, after a sweep, of block lengths."""
    about = (
        f"Drafter {report.drafter} on engine {report.engine}, policy {report.policy}, at most {report.block} drafts of "
        f"a block verified, temperature {report.temperature:g}. τ counts the bonus token; its interval is a bootstrap "
        "over prompts. Column k: accepted x_k where x_1 to x_{k-1} were accepted."
    )
    mean = ["mean", f"{report.tau:.2f}", *[""] * (len(_header(report)) - 2)]
    tables = [
        table(["data set", *_header(report)[1:]], [*_rows(report.datasets), mean]),
        table(["domain", *_header(report)[1:]], _rows(report.domains)),
    ]
    if report.blocks:
        rows = [[length, f"{tau:.2f}"] for length, tau in report.blocks.items()]
        tables.append(table(["drafts verified", "τ"], rows))
    return "\n\n".join([about, *tables]) + "\n"


def check_plot(file: Path) -> None:
    """Raises ConfigurationError where `file` could not be drawn: known before anything is measured."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("matplotlib is missing, which --plot needs: run 'make setup'")
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if file.suffix[1:].lower() not in known:
        raise ConfigurationError(f"plot {file}: a name that ends in one of .{', .'.join(known)} is expected")


def plot(report: AcceptanceReport, file: Path) -> None:
    """Draw the conditional acceptance by position, one line a domain. Raises ConfigurationError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, domain in report.domains.items():
        found = [(k, rate) for k, rate in enumerate(domain.acceptance_by_position, 1) if rate is not None]
        axes.plot([k for k, _ in found], [rate for _, rate in found], marker="o", label=name)
    axes.set(
        xlabel="position in the block", ylabel="acceptance, given all before", ylim=(0, 1),
        title=f"{report.drafter}, {report.engine}, temperature {report.temperature:g}",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error}") from error


def _header(report: AcceptanceReport) -> list[str]:
    gamma = max(len(dataset.acceptance_by_position) for dataset in report.datasets.values())
    return ["", "τ", "95% interval", *map(str, range(1, gamma + 1))]


def _rows(groups: Mapping[str, Acceptance]) -> list[list[str]]:
    return [
        [
            name, f"{found.tau:.2f}", f"{found.ci95[0]:.2f}–{found.ci95[1]:.2f}",
            *(ABSENT if rate is None else f"{rate:.2f}" for rate in found.acceptance_by_position),
        ]
        for name, found in groups.items()
    ]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
