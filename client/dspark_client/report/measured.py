"""What a report draws: one measurement of one configuration, whichever tool took it."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_client.bench.goals import Goodput
from dspark_client.bench.samples import Percentiles

ALL_DOMAINS = "all"


@dataclass(frozen=True)
class Measured:
    """One point; None where its file does not say."""

    source: str                      # the file's name
    series: str                      # a policy, or the tool that took it
    concurrency: int | None          # one of concurrency and rate, or neither
    rate: float | None
    domain: str
    tokens_per_second: float
    tokens_per_second_spread: tuple[float, float] | None = None
    tokens_per_second_per_user: float | None = None
    ttft_ms: Percentiles | None = None
    itl_ms: Percentiles | None = None
    tau: float | None = None
    verified_per_request: float | None = None
    ratio_to_none: float | None = None
    ratio_to_none_spread: tuple[float, float] | None = None
    goodput: Goodput | None = None
    repeats: int | None = None

    @property
    def level(self) -> str:
        """How much was asked at once, in words."""
        if self.rate is not None:
            return f"{self.rate:g} a second"
        return "" if self.concurrency is None else str(self.concurrency)


@dataclass(frozen=True)
class Source:
    """One file: its measurements, and what it says of how they were taken."""

    name: str
    kind: str
    measured: tuple[Measured, ...]
    settings: tuple[tuple[str, str], ...] = ()
