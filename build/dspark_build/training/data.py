"""Sequences to train on: responses with their states, split into training and held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dspark.engines.contract import Float32, Int32
from dspark.errors import ConfigurationError

from dspark_build.training.prompts import is_held_out
from dspark_build.training.responses import read_responses, shard_numbers
from dspark_build.training.states import StateSource, is_sealed, read_states


@dataclass(frozen=True)
class TrainingSequence:
    """One prompt + response of n tokens with the target's states."""

    id: str
    domain: str
    temperature: float
    prompt_length: int
    tokens: Int32                        # [n]
    taps: npt.NDArray[np.float16]        # [n, taps cached, d]
    last: npt.NDArray[np.float16]        # [n, d]
    log_z: Float32                       # [n]
    tap_places: tuple[int, ...]          # [m] which of the cached taps are the drafter's, in its order

    @property
    def tap_size(self) -> int:
        """m * d."""
        return len(self.tap_places) * self.taps.shape[2]

    def context(self, rows: int) -> npt.NDArray[np.float16]:
        """The drafter's taps of the first `rows` tokens [rows, m * d]."""
        taken = self.taps[:rows]
        if self.tap_places != tuple(range(taken.shape[1])):
            taken = taken[:, list(self.tap_places)]
        return taken.reshape(len(taken), self.tap_size)

    @property
    def anchors(self) -> int:
        """Response tokens that have a successor: any of them can be an anchor."""
        return len(self.tokens) - 1 - self.prompt_length


@dataclass(frozen=True)
class TrainingData:
    train: tuple[TrainingSequence, ...]
    held_out: tuple[TrainingSequence, ...]
    fingerprint: str                     # changes with the shards, so that a run is not resumed on other data

    @property
    def response_tokens(self) -> int:
        return sum(len(sequence.tokens) - sequence.prompt_length for sequence in self.train)


def load_data(responses: Path, states: Path, source: StateSource, held_out: float) -> TrainingData:
    """Every response shard whose states are cached.

    `held_out` is the fraction of prompts kept for validation. Raises ConfigurationError for damaged shards, and when
    there is nothing to train on.
    """
    numbers = [number for number in shard_numbers(responses) if is_sealed(states, number)]
    sequences = [sequence for number in numbers for sequence in _read(responses, states, number, source)]
    train = tuple(sequence for sequence in sequences if not is_held_out(sequence.id, held_out))
    kept = tuple(sequence for sequence in sequences if is_held_out(sequence.id, held_out))
    if not train:
        raise ConfigurationError(f"no training data: {responses} has no response shard with states in {states}")
    return TrainingData(train, kept, f"{numbers}/{len(sequences)}/{held_out}")


def _read(responses: Path, states: Path, number: int, source: StateSource) -> list[TrainingSequence]:
    shard = read_responses(responses, number)
    cached = read_states(states, number, len(shard.tokens), source)
    taps = cached.taps.reshape(len(shard.tokens), -1, source.hidden_size)
    sequences = []
    for index, (start, length) in enumerate(zip(shard.starts.tolist(), shard.lengths.tolist(), strict=True)):
        rows = slice(start, start + length)
        sequence = TrainingSequence(
            id=str(shard.ids[index]),
            domain=str(shard.domains[index]),
            temperature=float(shard.temperatures[index]),
            prompt_length=int(shard.prompt_lengths[index]),
            tokens=shard.tokens[rows],
            taps=taps[rows],
            last=cached.last[rows],
            log_z=cached.log_z[rows],
            tap_places=cached.source.places_of(source.tap_ids),
        )
        if sequence.anchors > 0:
            sequences.append(sequence)
    return sequences
