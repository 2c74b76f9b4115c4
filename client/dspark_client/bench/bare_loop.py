"""Plain greedy decoding with a target engine and nothing around it: what a server's speed is measured against."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from dspark.engines.contract import Int32, SamplingArrays, TargetEngine, TargetStep

SLOT = 0


@dataclass(frozen=True)
class BareRun:
    """The tokens, and the seconds from the first prompt token read to the last token known."""

    token_ids: tuple[int, ...]
    seconds: float


def decode_plainly(engine: TargetEngine, prompt: Int32, tokens: int, prefill_chunk: int) -> BareRun:
    """Decode `tokens` tokens after `prompt` [P], with the prompt read in chunks as a server reads it."""
    started = time.perf_counter()
    committed = 0
    while len(prompt) - committed > prefill_chunk:
        engine.step(_step(engine, committed, prompt[committed : committed + prefill_chunk], samples=False))
        committed += prefill_chunk
    read, output = prompt[committed:], []
    while len(output) < tokens:
        result = engine.step(_step(engine, committed, read, samples=True))
        committed += len(read)
        output.append(int(result.next_tokens[0]))
        read = result.next_tokens
    return BareRun(tuple(output), time.perf_counter() - started)


def _step(engine: TargetEngine, position: int, tokens: Int32, samples: bool) -> TargetStep:
    """A step of one greedy request without drafts or features."""
    integers, floats, flags = (np.zeros(1, kind) for kind in (np.int32, np.float32, np.bool_))
    ones = np.ones(1, np.float32)
    return TargetStep(
        slots=integers + np.int32(SLOT), positions=integers + np.int32(position),
        token_counts=integers + np.int32(len(tokens)), draft_counts=integers,
        samples=flags | samples, wants_features=flags, wants_log_probs=flags,
        tokens=tokens, draft_ids=np.zeros((0, 1), np.int32), draft_probs=np.zeros((0, 1), np.float32),
        sampling=SamplingArrays(floats, integers, ones, floats, ones),
        uniforms=np.zeros((1, engine.limits.max_draft_tokens + 1), np.float32),
        noise_keys=np.zeros((1, engine.limits.max_draft_tokens + 1), np.int32), coupled=flags,
        released=np.zeros(0, np.int32),
    )
