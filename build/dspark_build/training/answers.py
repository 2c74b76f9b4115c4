"""Responses on their way: many sequences that grow by one token in every step of a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from dspark.engines.contract import Float32, Int32
from dspark.engines.paged_runner import RaggedBatch
from dspark.engines.rows import begins
from dspark.prompts import Prompt

from dspark_build.training.recorder import Decoder
from dspark_build.training.states import FLOAT16_LIMIT

Float16 = npt.NDArray[np.float16]


@dataclass(eq=False)
class Answer:
    """One response on its way."""

    prompt: Prompt
    sample: int
    temperature: float
    prompt_length: int
    tokens: list[int]
    random: np.random.Generator
    committed: int = 0               # tokens the target has read
    slot: int = -1
    states: list[Float16] = field(default_factory=list)      # rows of the tokens read, where they are kept
    log_z: list[float] = field(default_factory=list)         # of the position that predicted each response token

    @property
    def response_length(self) -> int:
        return len(self.tokens) - self.prompt_length


def advance(decoder: Decoder, answers: Sequence[Answer], keep_states: bool) -> None:
    """One step of the target: every response grows by one token."""
    unread = [answer.tokens[answer.committed :] for answer in answers]
    counts = np.array([len(tokens) for tokens in unread], np.int32)
    recording = decoder.step(
        RaggedBatch(
            slots=np.array([answer.slot for answer in answers], np.int32),
            positions=np.array([answer.committed for answer in answers], np.int32),
            token_counts=counts,
            tokens=np.array([token for tokens in unread for token in tokens], np.int32),
        )
    )
    temperatures = np.array([answer.temperature for answer in answers], np.float32)
    uniforms = np.array([answer.random.random() for answer in answers])
    next_tokens, log_z = sample(recording.logits, temperatures, uniforms)
    first = begins(counts)
    states = recording.states.clip(-FLOAT16_LIMIT, FLOAT16_LIMIT).astype(np.float16) if keep_states else None
    for r, answer in enumerate(answers):
        answer.committed = len(answer.tokens)
        answer.tokens.append(int(next_tokens[r]))
        if states is not None:
            answer.states.append(states[first[r] : first[r + 1]])
            answer.log_z.append(float(log_z[r]))


def sample(logits: Float32, temperatures: Float32, uniforms: npt.NDArray[np.float64]) -> tuple[Int32, Float32]:
    """A token for every row of `logits` [R, V], by inverse CDF of `uniforms` [R], and log Σ exp(logits) [R].

    Temperature 0 takes the largest.
    """
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    log_z = largest[:, 0] + np.log(np.exp(shifted).sum(-1))
    tokens = logits.argmax(-1).astype(np.int32)
    for r in np.flatnonzero(temperatures > 0):
        passed = np.exp(shifted[r] / temperatures[r]).cumsum(dtype=np.float64)
        tokens[r] = min(np.searchsorted(passed, uniforms[r] * passed[-1], side="right"), passed.size - 1)
    return tokens, log_z.astype(np.float32)
