"""How many tokens a round brings (tau), and how often each position of a block is accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

import numpy as np

from dspark_client.load import Answer, Answering, load_progress, run_load
from dspark_client.prompts import Prompt, first_turn
from dspark_client.transport import Generation

RESAMPLES = 1000                     # of the bootstrap over prompts


@dataclass(frozen=True)
class Acceptance:
    """One data set or domain. tau counts the bonus token; the interval is a bootstrap over prompts.

    Acceptance by position is conditional: of the rounds that verified x_k and accepted x_1..x_{k-1}, the share that
    accepted x_k too; None where there was no such round.
    """

    tau: float
    ci95: tuple[float, float]
    acceptance_by_position: list[float | None]        # [gamma]
    rounds: int
    tokens: int


@dataclass(frozen=True)
class AcceptanceReport:
    """The result, in the names of its JSON; `tau` is the mean over the data sets."""

    tau: float
    datasets: dict[str, Acceptance]
    domains: dict[str, Acceptance]
    policy: str
    block: int                       # at most so many drafts of a block are verified
    temperature: float
    engine: str
    drafter: str
    blocks: dict[str, float] = field(default_factory=dict)           # of a sweep: tau where at most so many are
    verification: str = "standard"


def measure_acceptance(
    engines: Answering, prompts: Sequence[Prompt], settings: Generation, concurrency: int,
) -> list[Answer]:
    """The answers to the first turn of every prompt; the engines should verify whole blocks (policy `full`).

    Each prompt has a seed of its own, from that of `settings` and its id: with one seed for all, prompts of one length
    would share their luck. Raises DSparkError of the first request that fails.
    """
    seed = settings.seed or 0
    generations = [
        replace(settings, seed=seed + crc32(prompt.id.encode())).with_messages(first_turn(prompt))
        for prompt in prompts
    ]
    length = "" if settings.max_draft_tokens is None else f", blocks of {settings.max_draft_tokens}"
    with load_progress() as progress:
        return run_load(engines, generations, concurrency, progress, f"{concurrency} at a time{length}").answers


def answers_by(
    group: Literal["dataset", "domain"], prompts: Sequence[Prompt], answers: Sequence[Answer],
) -> dict[str, list[Answer]]:
    """The answers of each data set, or of each domain, in the order in which these first come."""
    found: dict[str, list[Answer]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        found.setdefault(getattr(prompt, group), []).append(answer)
    return found


def macro_tau(datasets: Mapping[str, Acceptance]) -> float:
    """The mean over the data sets, each counting the same."""
    return round(float(np.mean([dataset.tau for dataset in datasets.values()])), 4)


def summarise(answers: Sequence[Answer]) -> Acceptance:
    """The figures of some answers, from their statistics."""
    rounds, accepted = (np.array([a.statistics[name] for a in answers], np.int64) for name in ("rounds", "accepted"))
    accepted_at, judged_at = (
        np.sum([a.statistics[f"{name}_by_position"] for a in answers], axis=0) for name in ("accepted", "judged")
    )
    chosen = np.random.default_rng(0).integers(len(answers), size=(RESAMPLES, len(answers)))
    taus = 1 + accepted[chosen].sum(axis=1) / np.maximum(1, rounds[chosen].sum(axis=1))
    low, high = np.percentile(taus, [2.5, 97.5])
    return Acceptance(
        tau=round(1 + float(accepted.sum()) / max(1, int(rounds.sum())), 4),
        ci95=(round(float(low), 4), round(float(high), 4)),
        acceptance_by_position=[
            round(float(a / j), 4) if j else None for a, j in zip(accepted_at, judged_at, strict=True)
        ],
        rounds=int(rounds.sum()),
        tokens=sum(len(answer.token_ids) for answer in answers),
    )
