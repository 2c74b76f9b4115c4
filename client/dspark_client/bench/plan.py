"""What a sweep runs, in which order, and with which requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from zlib import crc32

import numpy as np

from dspark_client.prompts import Prompt, first_turn
from dspark_client.transport import Generation

ALL_DOMAINS = "all"


@dataclass(frozen=True)
class Level:
    """How much is asked at once: requests in flight, or requests that arrive a second."""

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.concurrency} at a time" if self.rate is None else f"{self.rate:g} a second"


@dataclass(frozen=True)
class Run:
    """One load under one policy."""

    policy: str
    concurrency: int | None
    rate: float | None
    domain: str
    repeat: int

    @property
    def level(self) -> Level:
        return Level(self.concurrency, self.rate)


@dataclass(frozen=True)
class LoadSize:
    """How many requests a load has: enough to keep its level up most of the time."""

    per_stream: int = 3              # closed loop: requests for each one in flight
    seconds: float = 30.0            # open loop: how long requests arrive
    at_least: int = 8

    def requests(self, level: Level) -> int:
        wanted = self.per_stream * level.concurrency if level.concurrency else math.ceil(self.seconds * level.rate)
        return max(self.at_least, wanted)


def plan_runs(
    policies: Sequence[str], levels: Sequence[Level], domains: Sequence[str], repeats: int, seed: int,
) -> list[Run]:
    """Every policy at every level and domain, all of them once in every repeat; policies in a shuffled order.

    The order of the policies follows from seed, repeat, level and domain, so a sweep that is taken up again keeps it.
    """
    return list(_runs(policies, levels, domains, repeats, seed))


def _runs(
    policies: Sequence[str], levels: Sequence[Level], domains: Sequence[str], repeats: int, seed: int,
) -> Iterator[Run]:
    for repeat in range(repeats):
        for level in levels:
            for domain in domains:
                random = np.random.default_rng([seed, repeat, crc32(f"{level} {domain}".encode())])
                for index in random.permutation(len(policies)):
                    yield Run(policies[index], level.concurrency, level.rate, domain, repeat)


def domains_of(prompts: Sequence[Prompt], by_domain: bool) -> list[str]:
    """The domains to measure apart, in the order in which they come; or all of them as one."""
    return list(dict.fromkeys(prompt.domain for prompt in prompts)) if by_domain else [ALL_DOMAINS]


def requests_of(run: Run, prompts: Sequence[Prompt], size: LoadSize, settings: Generation) -> list[Generation]:
    """The requests of a run: its domain's prompts in turn, domains mixed, going on where the repeat before ended.

    Whatever the policy, the requests and their seeds are the same.
    """
    chosen = mixed([prompt for prompt in prompts if run.domain in (ALL_DOMAINS, prompt.domain)])
    count = size.requests(run.level)
    numbers = range(run.repeat * count, (run.repeat + 1) * count)
    return [_request(chosen[number % len(chosen)], number // len(chosen), settings) for number in numbers]


def mixed(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with their domains taking turns."""
    by_domain: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_domain.setdefault(prompt.domain, []).append(prompt)
    return [prompt for prompt in chain.from_iterable(zip_longest(*by_domain.values())) if prompt is not None]


def _request(prompt: Prompt, turn: int, settings: Generation) -> Generation:
    """A seed of its own for every prompt, and for every time that it is asked."""
    asked = settings.with_messages(first_turn(prompt))
    return Generation(**{**vars(asked), "seed": (settings.seed or 0) + crc32(f"{prompt.id} {turn}".encode())})
