"""Responses on their way: many sequences that grow by one token in every step of a target engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dspark.engines.contract import Int32, SamplingArrays, TargetEngine, TargetStep

from dspark_build.training.prompts import Prompt


@dataclass(eq=False)
class Answer:
    """One response on its way."""

    prompt: Prompt
    sample: int
    temperature: float
    prompt_length: int
    tokens: list[int]
    random: np.random.Generator
    committed: int = 0               # tokens the engine has read
    slot: int = -1

    @property
    def response_length(self) -> int:
        return len(self.tokens) - self.prompt_length


def advance(engine: TargetEngine, answers: Sequence[Answer], released: Sequence[int]) -> None:
    """One engine step: every response grows by one token. `released` slots lost their sequence in the step before."""
    unread = [answer.tokens[answer.committed :] for answer in answers]
    count = len(answers)

    def ints(values: Sequence[int]) -> Int32:
        return np.array(values, np.int32)

    used = {answer.slot for answer in answers}
    result = engine.step(
        TargetStep(
            slots=ints([answer.slot for answer in answers]),
            positions=ints([answer.committed for answer in answers]),
            token_counts=ints([len(tokens) for tokens in unread]),
            draft_counts=np.zeros(count, np.int32),
            samples=np.ones(count, bool),
            wants_features=np.zeros(count, bool),
            wants_log_probs=np.zeros(count, bool),
            tokens=ints([token for tokens in unread for token in tokens]),
            draft_ids=np.zeros((0, 1), np.int32),
            draft_probs=np.zeros((0, 1), np.float32),
            sampling=SamplingArrays(
                temperature=np.array([answer.temperature for answer in answers], np.float32),
                top_k=np.zeros(count, np.int32),
                top_p=np.ones(count, np.float32),
                min_p=np.zeros(count, np.float32),
                repetition_penalty=np.ones(count, np.float32),
            ),
            uniforms=np.array([[answer.random.random(dtype=np.float32)] for answer in answers], np.float32),
            released=ints([slot for slot in released if slot not in used]),
        )
    )
    for answer, token in zip(answers, result.next_tokens.tolist(), strict=True):
        answer.committed = len(answer.tokens)
        answer.tokens.append(token)
