"""Which blocks of the KV pool belong to which slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Int32
from dspark.errors import EngineError


@dataclass(frozen=True)
class SlotDemand:
    """What one sequence of a step needs of the pool."""

    slot: int
    tokens: int                      # the slot must hold this many
    restarts: bool                   # whatever it held before is void


class KvBlocks:
    """Block tables of all slots; blocks are handed out as sequences grow and come back when they end."""

    def __init__(self, blocks: int, block_size: int, slots: int) -> None:
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._tables: list[list[int]] = [[] for _ in range(slots)]

    @property
    def free(self) -> int:
        return len(self._free)

    def held(self, slot: int) -> int:
        """Blocks of one slot."""
        return len(self._tables[slot])

    def release(self, slot: int) -> None:
        """Return all blocks of a slot; a slot without any is fine."""
        self._free += reversed(self._tables[slot])
        self._tables[slot] = []

    def reserve(self, demands: Sequence[SlotDemand]) -> None:
        """Give every slot the blocks it lacks, or, raising EngineError, change nothing at all."""
        returned = sum(self.held(demand.slot) for demand in demands if demand.restarts)
        lacking = [
            max(0, self._blocks_for(demand.tokens) - (0 if demand.restarts else self.held(demand.slot)))
            for demand in demands
        ]
        if sum(lacking) > self.free + returned:
            raise EngineError(
                f"the KV pool is exhausted: the step needs {sum(lacking)} more blocks of {self.block_size} tokens, "
                f"{self.free + returned} are free; admit fewer or shorter sequences, or build with a larger pool"
            )
        for demand in demands:
            if demand.restarts:
                self.release(demand.slot)
        for demand, count in zip(demands, lacking, strict=True):
            self._tables[demand.slot] += [self._free.pop() for _ in range(count)]

    def table(self, slot: int, tokens: int) -> Int32:
        """The blocks that hold the first `tokens` tokens of a slot, in order."""
        return np.array(self._tables[slot][: self._blocks_for(tokens)], np.int32)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
