"""From the target's logits to p^t: the distribution that a request's sampling settings define."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dspark.engines.contract import Float32, Int32
from dspark.errors import EngineError
from dspark.verification.distribution import Distribution, Float64, Int64
from dspark.verification.sampling import SamplingSettings

_NUCLEUS_GUESS = 64      # a nucleus is looked for among this many tokens first: most of a language model's are smaller
_DEPTH_BINS = 1024       # a wider one in a histogram of this many bins,
_BINS_PER_NAT = 32.0     # each 1/32 nat of logit wide
_COLUMNS_PER_TOKEN = 16  # columns over whose maxima the largest k logits are found, for each of the k


def target_distribution(logits: Float32, settings: SamplingSettings, history: Int32) -> Distribution:
    """p^t at one position: what the request's settings make of the target's logits [V] (dspark-spec, section 6).

    Order, that of Hugging Face: repetition penalty (for every token of `history` [n], prompt and output alike, a
    positive logit is divided by it, a negative one multiplied), temperature, top-k (exactly k tokens), top-p (the
    smallest set whose mass, of what top-k left, reaches p), min-p (at least that share of the likeliest token).
    vLLM takes min-p before top-k; the two differ only when min-p meets top-p. Among equal logits the lowest id
    counts as the likeliest. Temperature 0 is greedy: all mass on the largest penalised logit, filters without effect.

    Exponentials are fp32, sums and probabilities fp64. Raises EngineError when the largest logit is not finite.
    """
    row = _penalised(logits, settings.repetition_penalty, history)
    if settings.greedy:
        return Distribution(np.array([likeliest(row)]), np.ones(1), 1.0)
    peak = row[likeliest(row)]
    if 0 < settings.top_k < row.size:
        ids = _largest(row, settings.top_k)
        weights = _weights(row[ids], peak, settings.temperature)
        if settings.top_p < 1.0:
            ids = ids[: _nucleus_size(weights, settings.top_p * float(weights.sum()))]
    elif settings.top_p < 1.0:
        ids = _nucleus(row, _weights(row, peak, settings.temperature), settings.top_p)
    else:
        ids = _all_ids(row.size)
    if settings.min_p > 0.0:
        ids = ids[row[ids] - peak >= settings.temperature * math.log(settings.min_p)]
    if ids.size < row.size:
        ids = np.sort(ids)
        row = row[ids]
    else:
        ids = _all_ids(row.size)
    weights = _weights(row, peak, settings.temperature)
    return Distribution(ids, weights, float(weights.sum()))


def greedy_token(logits: Float32, settings: SamplingSettings, history: Int32) -> int:
    """The token that greedy decoding takes: argmax of the penalised logits [V], ties to the lowest id."""
    return likeliest(_penalised(logits, settings.repetition_penalty, history))


def likeliest(logits: Float32) -> int:
    """Argmax of logits [V], ties to the lowest id. Raises EngineError when that logit is not finite."""
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        raise EngineError(f"the target's logits are not finite (largest: {logits[best]} at token {best})")
    return best


def _penalised(logits: Float32, penalty: float, history: Int32) -> Float32:
    if penalty == 1.0 or not history.size:
        return logits
    row, seen = logits.copy(), logits[history]
    row[history] = np.where(seen < 0, seen * np.float32(penalty), seen / np.float32(penalty))
    return row


def _weights(logits: Float32, peak: np.float32, temperature: float) -> Float64:
    """exp((logits - peak) / temperature), the largest being 1."""
    scaled = logits - peak
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the peak to -inf, as it should
            scaled /= np.float32(temperature)
    np.exp(scaled, out=scaled)
    return scaled.astype(np.float64)


def _largest(row: Float32, k: int) -> Int64:
    """Ids of the k largest of row [V], descending, ties by id.

    The k-th largest of any column maxima is a lower bound of the k-th largest logit, since k logits reach it. With many
    more columns than k it is nearly the logit itself, so that hardly more than k candidates are left to sort.
    """
    columns = _COLUMNS_PER_TOKEN * k
    rows = row.size // columns
    if rows < 2:
        candidates = np.arange(row.size)
    else:
        maxima = row[: rows * columns].reshape(rows, columns).max(axis=0)
        bound = np.partition(maxima, columns - k)[columns - k]
        candidates = np.flatnonzero(row >= bound)
    ranked: Int64 = candidates[(-row[candidates]).argsort(kind="stable")]
    return ranked[:k]


def _nucleus(row: Float32, weights: Float64, top_p: float) -> Int64:
    """Ids of the smallest set with top_p of the mass; only the logits about its border are ever sorted."""
    mass = top_p * float(weights.sum())
    ranked = _largest(row, min(_NUCLEUS_GUESS, row.size))
    ranked_weights = weights[ranked]
    if float(ranked_weights.sum()) >= mass:
        return ranked[: _nucleus_size(ranked_weights, mass)]
    depth = np.minimum((row[ranked[0]] - row) * np.float32(_BINS_PER_NAT), _DEPTH_BINS - 1).astype(np.intp)
    reached = np.bincount(depth, weights).cumsum()
    border = min(int(reached.searchsorted(mass)), reached.size - 1)
    missing = mass - float(reached[border - 1]) if border else mass
    kept = depth < border
    at_border = np.flatnonzero(depth == border)
    ranked = at_border[(-row[at_border]).argsort(kind="stable")]
    kept[ranked[: _nucleus_size(weights[ranked], missing)]] = True
    ids: Int64 = np.flatnonzero(kept)
    return ids


def _nucleus_size(ranked_weights: Float64, mass: float) -> int:
    """How many of the weights, descending, it takes to reach `mass`: at least one, at most all."""
    return min(int(ranked_weights.cumsum().searchsorted(mass, side="left")) + 1, ranked_weights.size)


@lru_cache(maxsize=8)
def _all_ids(vocabulary: int) -> Int64:
    ids = np.arange(vocabulary)
    ids.flags.writeable = False
    return ids
