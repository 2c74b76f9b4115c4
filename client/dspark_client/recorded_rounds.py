"""Rounds that `dspark calibrate --record` wrote, read as sequences to replay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dspark.errors import ConfigurationError

from dspark_client.simulation import RecordedSequence


def read_recorded_rounds(path: Path) -> list[RecordedSequence]:
    """The sequences of a file of JSON lines, one round a line, in the order of the rounds.

    A line has prompt (its id), domain, temperature, round (its number), logits [gamma] (null: no confidence head),
    verified and accepted. Where less than a block is verified, what is accepted of it is taken for all that would be.
    Raises ConfigurationError naming the line.
    """
    rounds: dict[tuple[str, str, float], list[Mapping[str, Any]]] = {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"recorded rounds {path} cannot be read: {error}") from error
    gammas = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            key = (str(values["prompt"]), str(values["domain"]), float(values["temperature"]))
            gamma, accepted = len(values["logits"]), int(values["accepted"])
            if not 0 <= accepted <= int(values["verified"]) <= gamma:
                raise ValueError(f"{accepted} accepted of {values['verified']} verified of {gamma} drafts")
            rounds.setdefault(key, []).append({"round": int(values["round"]), **values})
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigurationError(
                f"{path}, line {number}: a round with prompt, domain, temperature, round, logits, accepted and "
                f"verified is expected ({error!r})"
            ) from error
        gammas.add(gamma)
    if len(gammas) != 1:
        raise ConfigurationError(f"{path}: rounds of one block size are expected, not {sorted(gammas) or 'none'}")
    return [_sequence(domain, temperature, found) for (_, domain, temperature), found in rounds.items()]


def _sequence(domain: str, temperature: float, rounds: list[Mapping[str, Any]]) -> RecordedSequence:
    ordered = sorted(rounds, key=lambda values: values["round"])
    return RecordedSequence(
        domain=domain, greedy=temperature == 0,
        logits=np.array([values["logits"] for values in ordered], np.float64).astype(np.float32),
        accepted=np.array([values["accepted"] for values in ordered], np.int32),
    )
