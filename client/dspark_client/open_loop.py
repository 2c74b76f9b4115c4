"""An open loop: requests arrive when they arrive, however many are still being answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from dspark.errors import DSparkError, OverloadedError
from rich.progress import Progress

from dspark_client.errors import RemoteError
from dspark_client.load import Answer, Answering, Clock, LoadResult, generate
from dspark_client.transport import Generation


def poisson_arrivals(requests_per_second: float, requests: int, seed: int) -> list[float]:
    """When each request arrives, in seconds after the first: a Poisson process, the same for the same seed."""
    gaps = np.random.default_rng(seed).exponential(1.0 / requests_per_second, requests - 1)
    return [0.0, *gaps.cumsum().tolist()]


def run_arrivals(
    engines: Answering, generations: Sequence[Generation], arrivals: Sequence[float], progress: Progress, label: str,
    clock: Clock = time.perf_counter, sleep: Callable[[float], None] = time.sleep,
) -> LoadResult:
    """Send every request when it arrives, and wait for all answers; those that a full queue refuses are counted.

    Raises DSparkError of the first that fails otherwise.
    """
    task = progress.add_task(label, total=len(generations))
    began = clock()

    def one(generation: Generation) -> Answer | None:
        try:
            return generate(engines, generation, clock, began)
        except DSparkError as error:
            if not is_overload(error):
                raise
            return None
        finally:
            progress.advance(task)

    pool = ThreadPoolExecutor(len(generations), thread_name_prefix="dspark-arrival")
    try:
        sent: list[Future[Answer | None]] = []
        for generation, arrival in zip(generations, arrivals, strict=True):
            sleep(max(0.0, began + arrival - clock()))
            sent.append(pool.submit(one, generation))
        found = [future.result() for future in sent]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    answers = [answer for answer in found if answer is not None]
    return LoadResult(answers, clock() - began, refused=len(found) - len(answers))


def is_overload(error: DSparkError) -> bool:
    """Whether a request was refused for now: by a server, or by engines in this process."""
    return isinstance(error, OverloadedError) or (isinstance(error, RemoteError) and error.code == "UNAVAILABLE")
