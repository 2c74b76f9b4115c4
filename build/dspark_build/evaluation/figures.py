"""A comparison as pictures: acceptance by position, and τ against the drafts of a block that are used."""

from __future__ import annotations

from pathlib import Path

from dspark.errors import ConfigurationError

from dspark_build.evaluation.results import Comparison

POSITIONS, SWEEP = "-positions", "-sweep"


def figure_paths(file: Path) -> tuple[Path, Path]:
    """The two pictures beside `file`, whose ending says their format.

    Raises ConfigurationError for an ending that cannot be drawn.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if file.suffix[1:].lower() not in known:
        raise ConfigurationError(f"plot {file}: a name that ends in one of .{', .'.join(known)} is expected")
    return file.with_stem(file.stem + POSITIONS), file.with_stem(file.stem + SWEEP)


def draw(comparison: Comparison, file: Path) -> tuple[Path, Path]:
    """Draw both pictures, one panel a temperature; returns where they are. Raises ConfigurationError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    paths = figure_paths(file)
    for path, field, label in (
        (paths[0], "acceptance", "acceptance, given all before"),
        (paths[1], "tau_by_drafts", "τ, mean over data sets"),
    ):
        count = len(comparison.temperatures)
        figure = Figure(figsize=(6 * count, 4), layout="constrained")
        for axes, found in zip(figure.subplots(1, count, squeeze=False)[0], comparison.temperatures, strict=True):
            for name, scores in found.drafters.items():
                points = [(k, value) for k, value in enumerate(getattr(scores, field), 1) if value is not None]
                axes.plot([k for k, _ in points], [value for _, value in points], marker="o", markersize=4, label=name)
            axes.set(xlabel="position in the block" if field == "acceptance" else "drafts used", ylabel=label)
            axes.set_title(f"temperature {found.temperature:g}")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.3)
            axes.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    return paths
