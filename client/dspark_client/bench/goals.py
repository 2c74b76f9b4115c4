"""Latency goals of a service, and the throughput that meets them (goodput)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark_client.load import Answer


@dataclass(frozen=True)
class Goodput:
    """Of one load, only the requests that met every goal; per second of its whole wall time."""

    requests_per_second: float
    tokens_per_second: float
    share: float                     # of all requests, refused ones included


@dataclass(frozen=True)
class Goals:
    """Most milliseconds to the first token, and between tokens in a request's mean; None: no goal."""

    ttft_ms: float | None = None
    itl_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.itl_ms is not None

    def met(self, answer: Answer) -> bool:
        """Whether one answer kept to both. A single response has no time between tokens."""
        if not answer.times:
            return False
        later = len(answer.token_ids) - answer.tokens_at[0]
        between_ms = 1e3 * (answer.total_s - answer.first_s) / later if later else 0.0
        return (self.ttft_ms is None or 1e3 * answer.first_s <= self.ttft_ms) and (
            self.itl_ms is None or between_ms <= self.itl_ms
        )

    def goodput(self, answers: Sequence[Answer], refused: int, wall_s: float) -> Goodput | None:
        """None where there are no goals."""
        if not self:
            return None
        good = [answer for answer in answers if self.met(answer)]
        return Goodput(
            requests_per_second=round(len(good) / wall_s, 4),
            tokens_per_second=round(sum(len(answer.token_ids) for answer in good) / wall_s, 2),
            share=round(len(good) / max(1, len(answers) + refused), 4),
        )
