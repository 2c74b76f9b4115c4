"""Randomness of one request: counter-based, so that it depends on the seed and the position alone."""

from __future__ import annotations

import enum
import secrets

import numpy as np

from dspark.engines.contract import Float32, Int32

SEED_BITS = 64
WORDS_PER_BLOCK = 4         # of Philox
DRAWN_SEED_BITS = 48        # a seed we draw survives a client that reads JSON numbers as doubles


class Purpose(enum.IntEnum):
    """What the numbers of a position are for; each has its own stream."""

    DRAFT = 1
    VERIFY = 2
    NOISE = 3


class RequestRandomness:
    """Numbers keyed by seed, position and purpose, so that neighbours do not change what is drawn."""

    def __init__(self, seed: int) -> None:
        self._philox = np.random.Philox(key=seed)
        self._state = self._philox.state

    def uniforms(self, position: int, purpose: Purpose, count: int) -> Float32:
        """`count` numbers of [0, 1) for the anchor at `position`; 24 bits each, so none rounds up to 1."""
        self._start((0, position, purpose, 0))                  # the lowest word counts within the stream
        bits: Float32 = (self._philox.random_raw(count) >> np.uint64(40)).astype(np.float32)
        return bits * np.float32(2.0**-24)

    def noise_keys(self, position: int, count: int) -> Int32:
        """32 bits for the token at `position`, whoever chooses it, and for each of the `count` - 1 after it."""
        self._start((position, 0, Purpose.NOISE, 0))            # a position is a block of the generator: four words
        words = self._philox.random_raw(WORDS_PER_BLOCK * count)[::WORDS_PER_BLOCK]
        return words.astype(np.uint32).view(np.int32)

    def _start(self, counter: tuple[int, int, int, int]) -> None:
        self._state["state"]["counter"][:] = counter
        self._state["buffer_pos"] = WORDS_PER_BLOCK             # nothing left over from the last call
        self._philox.state = self._state


def draw_seed() -> int:
    """A seed for a request that brings none."""
    return secrets.randbits(DRAWN_SEED_BITS)
