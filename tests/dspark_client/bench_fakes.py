"""Engines that answer without computing, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dspark_client.errors import RemoteError
from dspark_client.load import Answer
from dspark_client.transport import Chunk, Generation

SECONDS_PER_RESPONSE = 0.5


class Clock:
    """Time that passes only when someone waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeEngines:
    """Answers max_tokens tokens, under `none` one a response, under other policies two; half a second a response."""

    clock: Clock
    policy: str = "none"
    busy: int = 0                    # requests for another policy that are refused before one is taken
    refuse: frozenset[int] = frozenset()     # numbers of the requests without a policy that a full queue refuses
    switches: list[str] = field(default_factory=list)
    served: list[tuple[str, Generation]] = field(default_factory=list)

    def generate(self, generation: Generation, timeout_s: float | None = None) -> Iterator[Chunk]:
        if generation.policy is not None and generation.policy != self.policy:
            if self.busy:
                self.busy -= 1
                raise RemoteError("UNAVAILABLE", "others are being answered")
            self.policy = generation.policy
        if generation.policy is not None:
            self.switches.append(generation.policy)
        elif len(self.served) in self.refuse:
            self.served.append((self.policy, generation))
            raise RemoteError("UNAVAILABLE", "the queue is full")
        else:
            self.served.append((self.policy, generation))
        step = 1 if self.policy == "none" else 2
        left, rounds = generation.max_tokens or 1, 0
        while left > 0:
            self.clock.sleep(SECONDS_PER_RESPONSE)
            sent = min(step, left)
            left, rounds = left - sent, rounds + 1
            drafts = rounds * (step - 1)
            statistics = {"rounds": rounds, "drafted": 4 * drafts, "verified": 3 * drafts, "accepted": drafts}
            yield Chunk(token_ids=(1,) * sent, statistics=None if left else statistics)


def answer(sent_s: float, times: list[float], tokens_at: list[int] | None = None) -> Answer:
    """An answer that was sent then, with responses at these seconds after."""
    counts = tuple(tokens_at or [1] * len(times))
    return Answer("", (1,) * sum(counts), tuple(times), counts, {"rounds": len(times)}, sent_s)
