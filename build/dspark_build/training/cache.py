"""The cache stage: one pass of the target over every response shard leaves its hidden states on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.models.config import ModelConfig
from dspark_build.models.target import Target
from dspark_build.progress import Progress, silent
from dspark_build.training.responses import Responses, read_responses, shard_numbers
from dspark_build.training.states import (
    FLOAT16_LIMIT,
    States,
    StateSource,
    check_room,
    create_states,
    free_bytes,
    is_sealed,
    seal_states,
)

LOGIT_ROWS = 512                     # rows whose logits over V are held at once


@dataclass(frozen=True)
class CacheConfig:
    """Settings of the cache stage."""

    target: Path                     # the target's checkpoint folder
    responses: Path                  # folder of the generate stage
    states: Path                     # folder to fill; shards that are there already are kept
    tap_ids: tuple[int, ...]
    batch_tokens: int = 4096         # tokens of one forward pass, padding included
    device: str = "cpu"
    threads: int = 1


@dataclass(frozen=True)
class CachePlan:
    """What is left to do, known before anything is computed."""

    shards: tuple[int, ...]
    rows: int
    bytes: int
    free_bytes: int


@dataclass(frozen=True)
class CacheResult:
    rows: int
    bytes: int
    seconds: float


def plan_cache(config: CacheConfig) -> CachePlan:
    """Which shards lack states, and what they will take. Raises ConfigurationError for damaged or missing responses."""
    source = state_source(config)
    numbers = shard_numbers(config.responses)
    if not numbers:
        raise ConfigurationError(f"{config.responses} holds no response shard: run the generate stage first")
    missing = tuple(number for number in numbers if not is_sealed(config.states, number))
    rows = sum(len(read_responses(config.responses, number).tokens) for number in missing)
    return CachePlan(missing, rows, rows * source.bytes_per_row, free_bytes(config.states))


def cache_states(config: CacheConfig, progress: Progress = silent) -> CacheResult:
    """Compute the states of every shard that lacks them; an interruption costs at most one shard.

    Raises ConfigurationError when the disk has no room for all of them, before it starts.
    """
    plan = plan_cache(config)
    source = state_source(config)
    check_room(config.states, plan.rows, source)
    torch.set_num_threads(config.threads)
    target = Target.load(config.target).to(config.device)
    began, done = time.monotonic(), 0
    for number in plan.shards:
        responses = read_responses(config.responses, number)
        states = create_states(config.states, number, len(responses.tokens), source)
        for rows in _fill(target, responses, states, config):
            done += rows
            progress("hidden states (tokens)", done, plan.rows)
        seal_states(config.states, number, states)
    return CacheResult(plan.rows, plan.bytes, time.monotonic() - began)


def state_source(config: CacheConfig) -> StateSource:
    """What the states will be computed from. Raises ConfigurationError for taps that the target does not have."""
    model = ModelConfig.read(config.target)
    for tap in config.tap_ids:
        if not -1 <= tap < model.layers:
            raise ConfigurationError(f"tap {tap} must lie between -1 and {model.layers - 1}, the target's last layer")
    return StateSource(config.tap_ids, model.hidden_size, checkpoint_hash(config.target))


@torch.no_grad()
def _fill(target: Target, responses: Responses, states: States, config: CacheConfig) -> Iterator[int]:
    starts = responses.starts
    for group in _batches(responses.lengths, config.batch_tokens):
        longest = int(responses.lengths[group].max())
        tokens = np.zeros((len(group), longest), np.int64)
        for row, index in enumerate(group):
            tokens[row, : responses.lengths[index]] = _sequence(responses, starts, index)
        output = target.forward_dense(torch.from_numpy(tokens).to(config.device))
        taps = _half(output.tapped(config.tap_ids))
        last = _half(output.last_hidden)
        for row, index in enumerate(group):
            start, length = int(starts[index]), int(responses.lengths[index])
            states.taps[start : start + length] = taps[row, :length]
            states.last[start : start + length] = last[row, :length]
            # Only response tokens are predicted, and the last token predicts nothing that is known.
            first = int(responses.prompt_lengths[index]) - 1
            states.log_z[start : start + length] = np.nan
            predicting = output.last_hidden[row, first : length - 1]
            states.log_z[start + first : start + length - 1] = _log_z(target, predicting)
        yield int(responses.lengths[group].sum())


def _batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Sequences of similar length together, so that little of a pass is padding."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    for end in range(1, len(order) + 1):
        full = end == len(order) or (end + 1 - first) * lengths[order[end]] > batch_tokens
        if full:
            yield order[first:end]
            first = end


def _sequence(responses: Responses, starts: np.ndarray, index: int) -> np.ndarray:
    return responses.tokens[starts[index] : starts[index] + responses.lengths[index]]


def _half(values: torch.Tensor) -> np.ndarray:
    return values.float().clamp(-FLOAT16_LIMIT, FLOAT16_LIMIT).half().cpu().numpy()


def _log_z(target: Target, hidden: torch.Tensor) -> np.ndarray:
    parts = [target.lm_head(rows).float().logsumexp(-1) for rows in hidden.split(LOGIT_ROWS)]
    return torch.cat(parts).cpu().numpy()
