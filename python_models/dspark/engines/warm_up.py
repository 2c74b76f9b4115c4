"""A step that means nothing, to run the usual sizes once when an engine is loaded."""

from __future__ import annotations

import numpy as np

from dspark.engines.contract import SamplingArrays, TargetStep


def blank_step(sequences: int, tokens: int) -> TargetStep:
    """A greedy step of token 0 at the start of the first slots, every token but one of each a draft."""
    ones = np.ones(sequences, np.int32)
    greedy = SamplingArrays(
        temperature=np.zeros(sequences, np.float32),
        top_k=np.zeros(sequences, np.int32),
        top_p=np.ones(sequences, np.float32),
        min_p=np.zeros(sequences, np.float32),
        repetition_penalty=np.ones(sequences, np.float32),
    )
    return TargetStep(
        slots=np.arange(sequences, dtype=np.int32),
        positions=0 * ones,
        token_counts=tokens * ones,
        draft_counts=(tokens - 1) * ones,
        samples=ones.astype(np.bool_),
        wants_features=ones.astype(np.bool_),
        wants_log_probs=np.zeros(sequences, np.bool_),
        tokens=np.zeros(sequences * tokens, np.int32),
        draft_ids=np.zeros((sequences * (tokens - 1), 1), np.int32),
        draft_probs=np.ones((sequences * (tokens - 1), 1), np.float32),
        sampling=greedy,
        uniforms=np.zeros((sequences, tokens), np.float32),
        noise_keys=np.zeros((sequences, tokens), np.int32),
        coupled=np.zeros(sequences, np.bool_),
        released=np.zeros(0, np.int32),
    )
