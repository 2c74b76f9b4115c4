"""Several drafters, and prompt lookup alone and before each of them, on the same recorded responses."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from dspark.drafting import PromptLookup
from dspark.drafting.lookup import MAX_MATCH, MIN_MATCH
from dspark.engines.contract import Int32
from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.drafters import load_any_drafter
from dspark_build.drafters.checkpoint import target_embeddings
from dspark_build.evaluation.bootstrap import RESAMPLES
from dspark_build.evaluation.replay import (
    Outcomes,
    Recorded,
    lookup_first,
    recorded,
    replay_drafter,
    replay_lookup,
)
from dspark_build.evaluation.results import Comparison, dataset_of, score
from dspark_build.evaluation.rounds import tally
from dspark_build.models.config import ModelConfig
from dspark_build.progress import Progress, silent
from dspark_build.training.data import TrainingSequence, load_data
from dspark_build.training.states import StateSource

LOOKUP, LOOKUP_BEFORE = "prompt lookup", "lookup, then "
TEMPERATURE_DIGITS = 4               # temperatures are stored in float32


@dataclass(frozen=True)
class CompareConfig:
    """Settings of a comparison. Raises ConfigurationError naming what does not fit."""

    target: Path                     # the target's checkpoint folder
    responses: Path                  # recorded by the generate stage, of evaluation prompts
    states: Path                     # of them, by the generate or cache stage, with the taps of all drafters
    drafters: Mapping[str, Path]     # folder of each, by the name of its row
    ratios: tuple[tuple[str, str], ...] = ()   # rows whose ratio is wanted; empty: the first drafter over every other
    lookup: bool = False             # also prompt lookup, alone and before each drafter
    lookup_block: int = 7            # gamma of lookup alone; before a drafter it is the drafter's
    min_match: int = MIN_MATCH
    max_match: int = MAX_MATCH
    limit: int = 0                   # responses a data set and temperature; 0: all
    window: int = 256                # context rows a block sees, as in serving
    seed: int = 0
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        PromptLookup(self.min_match, self.max_match)
        if not self.rows or len(set(self.rows)) < len(self.rows):
            raise ConfigurationError("give at least one drafter or lookup, and every row a name of its own")
        for row in (row for pair in self.ratios for row in pair):
            if row not in self.rows:
                raise ConfigurationError(f"ratio of {row!r}: the rows are {', '.join(self.rows)}")
        for name in ("lookup_block", "window", "threads"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def rows(self) -> tuple[str, ...]:
        """The drafters, then lookup alone, then lookup before each of them."""
        names = tuple(self.drafters)
        return names + (LOOKUP, *(LOOKUP_BEFORE + name for name in names)) * self.lookup

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        return self.ratios or tuple((self.rows[0], other) for other in self.rows[1:])


def compare_drafters(config: CompareConfig, progress: Progress = silent) -> Comparison:
    """Replay every response with every drafter, and score the rows by temperature.

    Raises ConfigurationError for a drafter or data that cannot be read, or states that lack a drafter's tap.
    """
    torch.set_num_threads(config.threads)
    # No taps: lookup needs none, and each drafter brings its own.
    sequences = _sequences(config, ())
    head = target_embeddings(config.target)[1].to(config.device)
    responses = [recorded(sequence, head, config.seed) for sequence in sequences]
    outcomes: dict[str, list[Outcomes]] = {}
    blocks: dict[str, int] = {}
    for name, folder in config.drafters.items():
        drafter = load_any_drafter(folder, config.target).to(config.device)
        blocks[name] = drafter.config.block_size
        with_taps = _sequences(config, drafter.config.target_layer_ids)
        outcomes[name] = []
        for response, sequence in zip(responses, with_taps, strict=True):
            own = dataclasses.replace(response, sequence=sequence)
            outcomes[name].append(replay_drafter(drafter, own, config.window, config.device))
            progress(name, len(outcomes[name]), len(responses))
    if config.lookup:
        _add_lookup(config, responses, outcomes, blocks)
    return Comparison(
        seed=config.seed,
        window=config.window,
        resamples=RESAMPLES,
        temperatures=[
            score(
                temperature,
                [sequences[i] for i in members],
                {row: tally([outcomes[row][i] for i in members], blocks[row]) for row in config.rows},
                config.pairs,
                config.seed,
            )
            for temperature, members in _by_temperature(sequences).items()
        ],
    )


def _add_lookup(
    config: CompareConfig, responses: Sequence[Recorded], outcomes: dict[str, list[Outcomes]], blocks: dict[str, int]
) -> None:
    def looked_up(gamma: int) -> list[tuple[Outcomes, Int32]]:
        return [replay_lookup(response, gamma, config.min_match, config.max_match) for response in responses]

    outcomes[LOOKUP] = [found for found, _ in looked_up(config.lookup_block)]
    blocks[LOOKUP] = config.lookup_block
    for name in config.drafters:
        row = LOOKUP_BEFORE + name
        blocks[row] = blocks[name]
        outcomes[row] = [
            lookup_first(found, matches, own)
            for (found, matches), own in zip(looked_up(blocks[name]), outcomes[name], strict=True)
        ]


def _sequences(config: CompareConfig, taps: tuple[int, ...]) -> list[TrainingSequence]:
    """The responses, up to the limit, with the states of these taps."""
    size = ModelConfig.read(config.target).hidden_size
    source = StateSource(taps, size, checkpoint_hash(config.target))
    counts: Counter[tuple[str, float]] = Counter()
    kept = []
    for sequence in load_data(config.responses, config.states, source, held_out=0.0).train:
        key = (dataset_of(sequence.id), sequence.temperature)
        counts[key] += 1
        if not config.limit or counts[key] <= config.limit:
            kept.append(sequence)
    return kept


def _by_temperature(sequences: Sequence[TrainingSequence]) -> dict[float, list[int]]:
    groups: dict[float, list[int]] = {}
    for index, sequence in enumerate(sequences):
        groups.setdefault(round(sequence.temperature, TEMPERATURE_DIGITS), []).append(index)
    return dict(sorted(groups.items()))
