"""Choices that many can make alike: a token drawn from a distribution by noise that follows from seed and position.

Exponential race, also known as Gumbel-max: with E_v independent Exp(1), argmin E_v / p(v) has the law p. Whoever draws
by the same E from nearly the same p mostly draws the same token, so target and drafter draw by one noise. The drafter
computes it inside its graph (`dspark_build.models.coupling`), hence integer operations of 32 bits only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.verification.distribution import Distribution, Float64

UInt32 = npt.NDArray[np.uint32]

GOLDEN = 0x9E3779B9                  # 2^32 / golden ratio, odd: neighbouring token ids lie far apart
# (shift right and xor, multiply)…: "triple32" of Chris Wellons' hash-prospector, a bijection of 32 bits.
ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
LAST_SHIFT = 14
RESOLUTION = 2.0**-32
ROUNDING = 1e-5                      # more than fp32 can err by in a bound


def noise_hashes(key: int, tokens: npt.NDArray[Any]) -> UInt32:
    """32 random bits [n] for each of `tokens` [n] at the position whose noise key is `key` (its 32 bits)."""
    bits = tokens.astype(np.uint32)
    bits *= np.uint32(GOLDEN)
    bits ^= np.uint32(key & 0xFFFFFFFF)
    for shift, factor in ROUNDS:
        bits ^= bits >> np.uint32(shift)
        bits *= np.uint32(factor)
    bits ^= bits >> np.uint32(LAST_SHIFT)
    return bits


def exponential(hashes: UInt32) -> Float64:
    """E [n] = -log(1 - W), W in (0, 1) of 32 bits each; it is never less than W."""
    result: Float64 = -np.log1p(-(hashes + 0.5) * RESOLUTION)
    return result


def coupled_choice(distribution: Distribution, key: int) -> int:
    """The token argmin E_v / p(v), E from the noise of `key`: over random keys its law is `distribution`.

    None of probability 0 is chosen. W has 32 bits, so a token of less than 1e-10 may have no chance at all. The largest
    weight should be of the order of 1, as those of `target_distribution` and `draft_distribution` are.
    """
    ids, weights = distribution.ids, distribution.weights
    hashes = noise_hashes(key, ids)
    # E >= W: only tokens with W / p up to the time of a first guess can come before it. V logarithms would cost more.
    bounds = hashes.astype(np.float32)
    bounds += np.float32(0.5)
    with np.errstate(divide="ignore"):
        bounds /= weights.astype(np.float32)
    guess = int(bounds.argmin())
    time = float(exponential(hashes[guess : guess + 1])[0]) / float(weights[guess])
    running = np.flatnonzero(bounds <= np.float32(time / RESOLUTION * (1.0 + ROUNDING)))
    return int(ids[running[(exponential(hashes[running]) / weights[running]).argmin()]])
