"""Who may run: a bounded queue, target slots, and KV blocks reserved for a sequence's whole life."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dspark.engines.contract import TargetLimits
from dspark.errors import InvalidRequestError, OverloadedError
from dspark.orchestrator.sequence import Phase, Sequence


@dataclass(frozen=True)
class Capacity:
    """What there is to share out."""

    slots: int
    kv_blocks: int
    kv_block_size: int
    spare_tokens: int                # a step may write this many tokens beyond the committed ones
    max_queue: int

    @staticmethod
    def of(limits: TargetLimits, slots: int, max_queue: int) -> Capacity:
        return Capacity(slots, limits.kv_blocks, limits.kv_block_size, limits.spare_tokens, max_queue)

    def blocks_of(self, sequence: Sequence) -> int:
        """KV blocks that the sequence can come to need: ceil((prompt + max_tokens + spare) / block)."""
        tokens = len(sequence.request.prompt) + sequence.request.max_tokens + self.spare_tokens
        return -(-tokens // self.kv_block_size)


class Admission:
    """First come, first served: nobody overtakes a large request that waits for room, so nobody starves.

    Safe to use from several threads.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._waiting: deque[Sequence] = deque()
        self._free_slots = list(range(capacity.slots))
        self._free_blocks = capacity.kv_blocks

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_blocks_used(self) -> int:
        return self._capacity.kv_blocks - self._free_blocks

    def offer(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises InvalidRequestError if it can never fit, OverloadedError if the queue is full."""
        blocks = self._capacity.blocks_of(sequence)
        if blocks > self._capacity.kv_blocks:
            raise InvalidRequestError(
                f"a prompt of {len(sequence.request.prompt)} tokens with max_tokens {sequence.request.max_tokens} "
                f"needs {blocks} KV blocks; the pool has {self._capacity.kv_blocks}: ask for fewer tokens"
            )
        sequence.kv_blocks = blocks
        with self._lock:
            if len(self._waiting) >= self._capacity.max_queue:
                raise OverloadedError(f"{len(self._waiting)} requests are waiting, as many as may; try again later")
            self._waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Give the oldest waiting sequences a slot and their blocks, as far as both go."""
        admitted = []
        with self._lock:
            while self._waiting and self._free_slots and self._waiting[0].kv_blocks <= self._free_blocks:
                sequence = self._waiting.popleft()
                self._free_blocks -= sequence.kv_blocks
                sequence.slot = self._free_slots.pop(0)
                sequence.phase = Phase.PREFILL
                admitted.append(sequence)
        return admitted

    def release(self, sequence: Sequence) -> None:
        """Take back what `admit` gave."""
        with self._lock:
            self._free_slots.append(sequence.slot)
            self._free_blocks += sequence.kv_blocks

    def withdraw(self, leaves: Callable[[Sequence], bool]) -> list[Sequence]:
        """Take the waiting sequences for which `leaves` holds out of the queue."""
        with self._lock:
            leaving = [sequence for sequence in self._waiting if leaves(sequence)]
            if leaving:
                self._waiting = deque(sequence for sequence in self._waiting if sequence not in leaving)
        return leaving
