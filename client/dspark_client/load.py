"""Many requests at once: so many at a time, every answer with its times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dspark_client.transport import Chunk, Generation

REQUEST_TIMEOUT_S = 900.0
Clock = Callable[[], float]          # seconds, of any beginning


class Answering(Protocol):
    """Whoever answers requests, several threads' at once: a Connection to a server, or DirectEngines."""

    def generate(self, generation: Generation, timeout_s: float | None = None) -> Iterable[Chunk]: ...


@dataclass(frozen=True)
class Answer:
    """A finished request; times in seconds since it was sent, one a response that brought tokens."""

    text: str
    token_ids: tuple[int, ...]
    times: tuple[float, ...]
    tokens_at: tuple[int, ...]       # how many tokens came at each of `times`
    statistics: Mapping[str, Any]
    sent_s: float = 0.0              # when it was sent, in seconds since its load began

    @property
    def first_s(self) -> float:
        return self.times[0]

    @property
    def total_s(self) -> float:
        return self.times[-1]


@dataclass(frozen=True)
class LoadResult:
    """The answers in the order of the requests, and the seconds that all of them took together."""

    answers: list[Answer]
    wall_s: float
    refused: int = 0                 # requests that a full queue refused; only an open loop goes on after one

    @property
    def tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)


def generate(
    engines: Answering, generation: Generation, clock: Clock = time.perf_counter, began: float | None = None,
) -> Answer:
    """One request, to its end, as part of a load that began when `clock` showed `began`. Raises DSparkError."""
    texts, token_ids, times, tokens_at, statistics = [], [], [], [], {}
    sent = clock()
    for chunk in engines.generate(generation, REQUEST_TIMEOUT_S):
        texts.append(chunk.text)
        token_ids.extend(chunk.token_ids)
        statistics = chunk.statistics or statistics
        if chunk.token_ids:
            times.append(clock() - sent)
            tokens_at.append(len(chunk.token_ids))
    return Answer(
        "".join(texts), tuple(token_ids), tuple(times), tuple(tokens_at), statistics,
        0.0 if began is None else sent - began,
    )


def run_load(
    engines: Answering, generations: Sequence[Generation], concurrency: int, progress: Progress, label: str,
    clock: Clock = time.perf_counter,
) -> LoadResult:
    """All requests, `concurrency` of them in flight at any time. Raises DSparkError of the first that fails."""
    task = progress.add_task(label, total=len(generations))
    began = clock()

    def one(generation: Generation) -> Answer:
        answer = generate(engines, generation, clock, began)
        progress.advance(task)
        return answer

    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="dspark-load")
    try:
        answers = list(pool.map(one, generations))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return LoadResult(answers, clock() - began)


def load_progress() -> Progress:
    """A bar a load, on stderr, so that standard output carries results alone."""
    from rich.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
