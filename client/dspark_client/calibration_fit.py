"""From recorded rounds to STS temperatures, and how well they do on rounds that took no part (section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dspark.engines.contract import Bool
from dspark.errors import ConfigurationError
from dspark.scheduling import survival
from dspark.scheduling.calibration import CalibratedPosition
from dspark.scheduling.confidence import Float64
from dspark.scheduling.sts import Reliability, fit_temperatures, reliability, roc_auc

from dspark_client.prompts import Prompt
from dspark_client.rounds_recorder import Round

MINIMUM_ROUNDS = 100                 # of each part: 15 bins of fewer say nothing


@dataclass(frozen=True, eq=False)
class PromptRounds:
    """The rounds of one answer."""

    prompt: Prompt
    temperature: float               # of the request
    rounds: Sequence[Round]


@dataclass(frozen=True)
class Fit:
    """A fit, judged on the held-out rounds."""

    positions: tuple[CalibratedPosition, ...]        # [gamma]
    before: list[Reliability]                        # [gamma] of a_k, uncalibrated
    after: list[Reliability]
    fit_rounds: int
    held_out_rounds: int


@dataclass(frozen=True)
class _Rounds:
    """Rounds as arrays."""

    logits: Float64                  # [N, gamma]
    survived: Bool                   # [N, gamma] y_k
    known: Bool                      # [N, gamma] the draft was verified

    @staticmethod
    def of(answers: Sequence[PromptRounds], gamma: int) -> _Rounds:
        rounds = [found for answer in answers for found in answer.rounds]
        accepted, verified = (np.array([getattr(r, name) for r in rounds], int) for name in ("accepted", "verified"))
        positions = np.arange(gamma)
        logits = np.array([found.logits for found in rounds], np.float64).reshape(-1, gamma)
        return _Rounds(logits, positions < accepted[:, None], positions < verified[:, None])

    def at(self, k: int, temperatures: Float64) -> tuple[Float64, Bool]:
        """Predicted survival to position k, and who survived, of the rounds where that is known."""
        rows = self.known[:, k]
        return survival(self.logits[rows, : k + 1], temperatures[: k + 1])[:, k], self.survived[rows, k]


def fit(answers: Sequence[PromptRounds], held_out: Sequence[PromptRounds], gamma: int) -> Fit:
    """Temperatures fitted on the rounds of `answers`, judged on those of `held_out`.

    Raises ConfigurationError where either are too few.
    """
    fitted, judged = _Rounds.of(answers, gamma), _Rounds.of(held_out, gamma)
    if min(len(fitted.logits), len(judged.logits)) < MINIMUM_ROUNDS:
        raise ConfigurationError(
            f"{len(fitted.logits)} rounds to fit and {len(judged.logits)} held out are too few, at least "
            f"{MINIMUM_ROUNDS} of each are needed: take more prompts or a larger --max-tokens"
        )
    chosen = fit_temperatures(fitted.logits, fitted.survived, fitted.known)
    plain = np.ones_like(chosen)
    by_temperature = {
        f"{t:g}": _Rounds.of([found for found in held_out if found.temperature == t], gamma)
        for t in dict.fromkeys(found.temperature for found in held_out)
    }
    return Fit(
        positions=tuple(
            CalibratedPosition(
                temperature=round(float(chosen[k]), 6),
                ece_before=_error(judged, k, plain), ece_after=_error(judged, k, chosen),
                auc=_rounded(roc_auc(*judged.at(k, chosen))), count=int(judged.known[:, k].sum()),
                ece_after_by_temperature={name: _error(group, k, chosen) for name, group in by_temperature.items()},
            )
            for k in range(gamma)
        ),
        before=[reliability(*judged.at(k, plain)) for k in range(gamma)],
        after=[reliability(*judged.at(k, chosen)) for k in range(gamma)],
        fit_rounds=len(fitted.logits), held_out_rounds=len(judged.logits),
    )


def _error(rounds: _Rounds, k: int, temperatures: Float64) -> float | None:
    found = reliability(*rounds.at(k, temperatures))
    return _rounded(found.error) if found.counts.any() else None


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 4)
