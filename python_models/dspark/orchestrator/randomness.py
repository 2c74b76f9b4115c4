"""Randomness of one request: counter-based, so that it depends on the seed and the position alone."""

from __future__ import annotations

import enum
import secrets

import numpy as np

from dspark.engines.contract import Float32

SEED_BITS = 64
DRAWN_SEED_BITS = 48        # a seed we draw survives a client that reads JSON numbers as doubles


class Purpose(enum.IntEnum):
    """What the numbers of a position are for; each has its own stream."""

    DRAFT = 1
    VERIFY = 2


class RequestRandomness:
    """Uniform numbers keyed by seed, anchor position and purpose, so that neighbours do not change what is drawn."""

    def __init__(self, seed: int) -> None:
        self._philox = np.random.Philox(key=seed)
        self._state = self._philox.state

    def uniforms(self, position: int, purpose: Purpose, count: int) -> Float32:
        """`count` numbers of [0, 1) for the anchor at `position`; 24 bits each, so none rounds up to 1."""
        self._state["state"]["counter"][:] = (0, position, purpose, 0)     # the lowest word counts within the stream
        self._state["buffer_pos"] = 4                                      # nothing left over from the last call
        self._philox.state = self._state
        bits: Float32 = (self._philox.random_raw(count) >> np.uint64(40)).astype(np.float32)
        return bits * np.float32(2.0**-24)


def draw_seed() -> int:
    """A seed for a request that brings none."""
    return secrets.randbits(DRAWN_SEED_BITS)
