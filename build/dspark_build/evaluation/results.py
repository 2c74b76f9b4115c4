"""The figures of a comparison, as its JSON holds them.

The JSON is a `Comparison` field by field: {seed, window, resamples, temperatures: [{temperature, prompts: {data set:
count}, drafters: {name: {block, tau, ci95, datasets: {data set: {tau, ci95, rounds, tokens, acceptance}}, domains: {…},
acceptance, tau_by_drafts}}, ratios: [{numerator, denominator, ratio, ci95, datasets: {data set: {ratio, ci95}}}]}]}.
All lists over block positions begin with position 1; an acceptance that was never tested is null.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dspark_build.evaluation.bootstrap import RESAMPLES, Estimate, Prompts, mean
from dspark_build.evaluation.rounds import Tally
from dspark_build.training.data import TrainingSequence

DIGITS = 4
Interval = tuple[float, float]


@dataclass(frozen=True)
class Score:
    """One drafter on one group of responses; tau counts the target's own token of every round."""

    tau: float
    ci95: Interval
    rounds: int
    tokens: int
    acceptance: list[float | None]   # [gamma] drafts that stand where all before them do


@dataclass(frozen=True)
class DrafterScores:
    """One drafter; `tau` is the mean over the data sets, `acceptance` that of all rounds together."""

    block: int                       # gamma
    tau: float
    ci95: Interval
    datasets: dict[str, Score]
    domains: dict[str, Score]
    acceptance: list[float | None]
    tau_by_drafts: list[float]       # [gamma] mean τ when only the first 1..gamma drafts of a block are used


@dataclass(frozen=True)
class Ratio:
    ratio: float
    ci95: Interval


@dataclass(frozen=True)
class PairedRatio:
    """τ of one drafter over that of another on the same prompts; `ratio` is that of the two means over data sets."""

    numerator: str
    denominator: str
    ratio: float
    ci95: Interval
    datasets: dict[str, Ratio]


@dataclass(frozen=True)
class AtTemperature:
    temperature: float
    prompts: dict[str, int]          # distinct ones, by data set
    drafters: dict[str, DrafterScores]
    ratios: list[PairedRatio]


@dataclass(frozen=True)
class Comparison:
    seed: int
    window: int
    resamples: int
    temperatures: list[AtTemperature]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def dataset_of(prompt_id: str) -> str:
    """What stands before the first slash of a prompt's id."""
    return prompt_id.split("/", 1)[0]


def score(
    temperature: float,
    responses: Sequence[TrainingSequence],
    tallies: Mapping[str, Tally],
    pairs: Sequence[tuple[str, str]],
    seed: int,
    resamples: int = RESAMPLES,
) -> AtTemperature:
    """Figures with 95% intervals from the tallies of each drafter over the S `responses` of one temperature.

    `pairs` are the drafters whose ratio is asked for.
    """
    datasets = _groups([dataset_of(response.id) for response in responses], responses, seed, resamples)
    domains = _groups([response.domain for response in responses], responses, seed, resamples)
    taus = {
        name: {dataset: group.tau(found) for dataset, group in datasets.items()} for name, found in tallies.items()
    }
    means = {name: mean(list(of_dataset.values())) for name, of_dataset in taus.items()}
    return AtTemperature(
        temperature=temperature,
        prompts={dataset: len(group.prompts.distinct) for dataset, group in datasets.items()},
        drafters={
            name: DrafterScores(
                block=found.tested.shape[1],
                tau=_rounded(means[name].value),
                ci95=_interval(means[name]),
                datasets={dataset: group.score(found, taus[name][dataset]) for dataset, group in datasets.items()},
                domains={domain: group.score(found, group.tau(found)) for domain, group in domains.items()},
                acceptance=_acceptance(found, np.arange(len(responses))),
                tau_by_drafts=[
                    _rounded(np.mean([group.point(found.tokens, rounds) for group in datasets.values()]))
                    for rounds in found.truncated_rounds.T
                ],
            )
            for name, found in tallies.items()
        },
        ratios=[
            PairedRatio(
                numerator=above,
                denominator=below,
                **_ratio(means[above].over(means[below])),
                datasets={name: Ratio(**_ratio(taus[above][name].over(taus[below][name]))) for name in datasets},
            )
            for above, below in pairs
        ],
    )


@dataclass(frozen=True)
class _Group:
    """The responses of one data set or domain."""

    members: np.ndarray              # [S of the group] their places among all
    prompts: Prompts

    def tau(self, found: Tally) -> Estimate:
        return self.prompts.tau(found.tokens[self.members], found.rounds[self.members])

    def point(self, tokens: np.ndarray, rounds: np.ndarray) -> float:
        return float(tokens[self.members].sum() / rounds[self.members].sum())

    def score(self, found: Tally, tau: Estimate) -> Score:
        return Score(
            tau=_rounded(tau.value),
            ci95=_interval(tau),
            rounds=int(found.rounds[self.members].sum()),
            tokens=int(found.tokens[self.members].sum()),
            acceptance=_acceptance(found, self.members),
        )


def _groups(
    names: Sequence[str], responses: Sequence[TrainingSequence], seed: int, resamples: int
) -> dict[str, _Group]:
    groups = {}
    for name in sorted(set(names)):
        members = np.flatnonzero(np.array(names) == name)
        groups[name] = _Group(members, Prompts([responses[i].id for i in members], seed, resamples))
    return groups


def _acceptance(found: Tally, members: np.ndarray) -> list[float | None]:
    tested, accepted = found.tested[members].sum(0), found.accepted[members].sum(0)
    return [_rounded(a / t) if t else None for a, t in zip(accepted.tolist(), tested.tolist(), strict=True)]


def _ratio(estimate: Estimate) -> dict[str, float | Interval]:
    return {"ratio": _rounded(estimate.value), "ci95": _interval(estimate)}


def _interval(estimate: Estimate) -> Interval:
    low, high = estimate.interval
    return _rounded(low), _rounded(high)


def _rounded(value: float) -> float:
    return round(float(value), DIGITS)
