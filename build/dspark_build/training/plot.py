"""The curves of a run as a picture: losses, validation τ, and acceptance by position."""

from __future__ import annotations

import csv
from pathlib import Path

from dspark_build.training.curves import LOSSES, VALIDATION

PLOT = "curves.png"
Columns = dict[str, list[float]]


def plot_curves(folder: Path) -> Path:
    """Draw `folder`'s CSV files to `curves.png` there; returns its path."""
    from matplotlib.figure import Figure

    losses, validation = _read(folder / LOSSES), _read(folder / VALIDATION)
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name in ("cross_entropy", "total_variation", "confidence"):
        left.plot(losses["block_tokens"], losses[name], label=name.replace("_", " "), linewidth=0.8)
    left.set_yscale("log")
    left.set(xlabel="block-tokens", title="losses")
    for name in ("greedy", "sampled"):
        middle.plot(validation["block_tokens"], validation[f"tau_{name}"], marker="o", label=name)
        profile = [validation[key][-1] for key in validation if key.startswith(f"{name}_") and validation[key]]
        right.plot(range(1, len(profile) + 1), profile, marker="o", label=name)
    middle.set(xlabel="block-tokens", title="validation τ (bonus included)")
    right.set(xlabel="position", ylim=(0, 1), title="conditional acceptance")
    for axes in (left, middle, right):
        axes.legend()
        axes.grid(alpha=0.3)
    path = folder / PLOT
    figure.savefig(path, dpi=110)
    return path


def _read(path: Path) -> Columns:
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    return {name: [float(row[index]) for row in rows[1:]] for index, name in enumerate(rows[0])}
