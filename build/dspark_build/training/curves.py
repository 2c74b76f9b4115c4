"""Training curves as CSV: `losses.csv`, one row a logged step, and `validation.csv`, one row a validation."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from dspark_build.training.validation import Validation

LOSSES, VALIDATION = "losses.csv", "validation.csv"
LOSS_COLUMNS = (
    "step", "block_tokens", "loss", "cross_entropy", "total_variation", "confidence", "gradient_norm", "learning_rate",
)


class Curves:
    """Appends rows; starting at a step drops those after it, which an interrupted run wrote past its checkpoint."""

    def __init__(self, folder: Path, gamma: int, start_step: int) -> None:
        self.losses, self.validation = folder / LOSSES, folder / VALIDATION
        self._gamma = gamma
        _truncate(self.losses, LOSS_COLUMNS, start_step)
        _truncate(self.validation, _validation_columns(gamma), start_step)

    def add_losses(self, row: Sequence[float]) -> None:
        """One row in the order of LOSS_COLUMNS."""
        _append(self.losses, row)

    def add_validation(self, step: int, block_tokens: int, result: Validation) -> None:
        profiles = (*result.greedy.conditional, *result.sampled.conditional)
        _append(self.validation, [step, block_tokens, result.greedy.tau, result.sampled.tau, *profiles])


def _validation_columns(gamma: int) -> tuple[str, ...]:
    positions = range(1, gamma + 1)
    return (
        "step",
        "block_tokens",
        "tau_greedy",
        "tau_sampled",
        *(f"greedy_{k}" for k in positions),
        *(f"sampled_{k}" for k in positions),
    )


def _append(path: Path, row: Sequence[float]) -> None:
    with path.open("a", newline="") as file:
        csv.writer(file).writerow(repr(value) if isinstance(value, float) else value for value in row)


def _truncate(path: Path, columns: Sequence[str], step: int) -> None:
    kept: list[list[str]] = []
    if path.is_file():
        with path.open(newline="") as file:
            kept = [row for row in list(csv.reader(file))[1:] if row and int(row[0]) <= step]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(columns), *kept])
