"""`dspark evaluate`: how many tokens a round brings (tau), by data set and by position in the block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark_client.load import Answer, load_progress, run_load
from dspark_client.prompts import Prompt
from dspark_client.transport import Connection, Generation

RESAMPLES = 1000                     # of the bootstrap over prompts


@dataclass(frozen=True)
class Acceptance:
    """One data set. tau counts the bonus token; the interval is a bootstrap over prompts."""

    tau: float
    ci95: tuple[float, float]
    acceptance_by_position: list[float | None]        # accepted x_k for each x_k verified; None: never verified
    rounds: int
    tokens: int


@dataclass(frozen=True)
class AcceptanceReport:
    """The result, in the names of its JSON; `tau` is the mean over the data sets."""

    tau: float
    datasets: dict[str, Acceptance]
    engine: str
    drafter: str


def measure_acceptance(
    connection: Connection, prompts: Sequence[Prompt], settings: Generation, concurrency: int,
    engine: str, drafter: str,
) -> AcceptanceReport:
    """Answer the first turn of every prompt, and count. The server should verify whole blocks (policy `full`)."""
    generations = [settings.with_messages(prompt.first_turn()) for prompt in prompts]
    with load_progress() as progress:
        answers = run_load(connection, generations, concurrency, progress, f"{concurrency} at a time").answers
    by_dataset: dict[str, list[Answer]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        by_dataset.setdefault(prompt.dataset, []).append(answer)
    datasets = {name: summarise(found) for name, found in by_dataset.items()}
    tau = float(np.mean([dataset.tau for dataset in datasets.values()]))
    return AcceptanceReport(round(tau, 4), datasets, engine, drafter)


def summarise(answers: Sequence[Answer]) -> Acceptance:
    """The figures of one data set, from the statistics of its answers."""
    rounds, accepted = (np.array([a.statistics[name] for a in answers], np.int64) for name in ("rounds", "accepted"))
    verified_at, accepted_at = (
        np.sum([a.statistics[f"{name}_by_position"] for a in answers], axis=0) for name in ("verified", "accepted")
    )
    chosen = np.random.default_rng(0).integers(len(answers), size=(RESAMPLES, len(answers)))
    taus = 1 + accepted[chosen].sum(axis=1) / np.maximum(1, rounds[chosen].sum(axis=1))
    low, high = np.percentile(taus, [2.5, 97.5])
    return Acceptance(
        tau=round(1 + float(accepted.sum()) / max(1, int(rounds.sum())), 4),
        ci95=(round(float(low), 4), round(float(high), 4)),
        acceptance_by_position=[
            round(float(a / v), 4) if v else None for a, v in zip(accepted_at, verified_at, strict=True)
        ],
        rounds=int(rounds.sum()),
        tokens=sum(len(answer.token_ids) for answer in answers),
    )
