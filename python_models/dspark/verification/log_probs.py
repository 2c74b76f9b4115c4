"""Log-probabilities a client may ask for."""

from __future__ import annotations

import numpy as np

from dspark.engines.contract import Float32, Int32


def log_probs_of(logits: Float32, tokens: Int32) -> Float32:
    """The model's own log p (temperature 1, unfiltered) of tokens [n] under logits [n, V], as [n]."""
    result = np.empty(len(tokens), np.float32)
    for i, (row, token) in enumerate(zip(logits, tokens, strict=True)):  # a row at a time stays in the cache
        scaled = row - row.max()
        result[i] = scaled[token] - np.log(np.exp(scaled).sum(dtype=np.float64))
    return result
