"""A calibration for people: a table in Markdown, and the reliability of every position as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dspark.errors import ConfigurationError
from dspark.scheduling.calibration import CalibrationRecord
from dspark.scheduling.sts import Reliability

from dspark_client.acceptance_report import ABSENT, table
from dspark_client.calibration_fit import Fit

COLUMNS = 4                          # of the picture


def markdown(record: CalibrationRecord) -> str:
    """What it comes from, and a row a position."""
    data = record.data
    about = (
        f"Drafter {record.drafter[:12]} on engine {data.engine}, request temperatures "
        f"{', '.join(f'{t:g}' for t in record.temperatures)}: fitted on {data.fit_rounds} rounds of {data.fit_prompts} "
        f"prompts, judged on {data.held_out_rounds} rounds of {data.held_out_prompts} others. Expected calibration "
        "error (ECE, 15 bins) and ROC-AUC of the survival a_k; the whole block was verified."
    )
    served = [f"{t:g}" for t in record.temperatures]
    header = ["position", "T", "ECE before", "ECE after", *(f"after, at {name}" for name in served), "AUC", "rounds"]
    rows = [
        [
            str(k), f"{found.temperature:.3g}", _percent(found.ece_before), _percent(found.ece_after),
            *(_percent(found.ece_after_by_temperature.get(name)) for name in served),
            ABSENT if found.auc is None else f"{found.auc:.3f}", str(found.count),
        ]
        for k, found in enumerate(record.positions, 1)
    ]
    return f"{about}\n\n{table(header, rows)}\n"


def plot(fit: Fit, file: Path) -> None:
    """Draw predicted against observed survival before and after, one panel a position. Raises ConfigurationError."""
    from matplotlib.figure import Figure

    gamma = len(fit.before)
    columns = min(COLUMNS, gamma)
    rows = -(-gamma // columns)
    figure = Figure(figsize=(2.6 * columns, 2.7 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for k, (axes, position) in enumerate(zip(panels, fit.positions, strict=False)):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, found, error in (
            ("before", fit.before[k], position.ece_before), ("after", fit.after[k], position.ece_after),
        ):
            _draw(axes, found, f"{name}, ECE {_percent(error)}")
        axes.set(title=f"x{k + 1}, T = {position.temperature:.3g}", xlim=(0, 1), ylim=(0, 1))
        axes.legend(fontsize=7, loc="upper left")
    for axes in panels[gamma:]:
        axes.set_visible(False)
    figure.supxlabel("predicted survival")
    figure.supylabel("observed survival")
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error}") from error


def _draw(axes: object, found: Reliability, label: str) -> None:
    """A line through the bins, with dots as large as the bins are full."""
    some = found.counts > 0
    sizes = 4 + 40 * np.sqrt(found.counts[some] / max(1, found.counts.sum()))
    (line,) = axes.plot(found.predicted[some], found.observed[some], linewidth=1, label=label)  # type: ignore[attr-defined]
    axes.scatter(found.predicted[some], found.observed[some], sizes, color=line.get_color())    # type: ignore[attr-defined]


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.1f}%"
