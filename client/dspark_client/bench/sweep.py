"""`dspark bench`: several policies side by side on one server, at several levels of load, in one run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dspark.errors import DSparkError
from rich.progress import Progress

from dspark_client.bench.counters import CounterReading
from dspark_client.bench.goals import Goals
from dspark_client.bench.plan import LoadSize, Run, requests_of
from dspark_client.bench.record import SweepFile
from dspark_client.bench.samples import Sample, summarise_load
from dspark_client.load import Answering, Clock, generate, run_load
from dspark_client.open_loop import is_overload, poisson_arrivals, run_arrivals
from dspark_client.prompts import Prompt
from dspark_client.transport import Generation

WARM_UP_TOKENS = 16                  # of one request alone, in which the policy changes
SWITCH_TIMEOUT_S, SWITCH_PAUSE_S = 60.0, 0.1


@dataclass(frozen=True)
class Bench:
    """Who is measured, and with what."""

    engines: Answering               # that change their policy when a request alone asks for another
    prompts: Sequence[Prompt]
    generation: Generation           # how to answer, prompt and seed of each request aside
    size: LoadSize
    goals: Goals
    metrics_address: str | None = None
    clock: Clock = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


def run_sweep(
    bench: Bench, runs: Sequence[Run], file: SweepFile, progress: Progress, max_seconds: float | None = None,
) -> None:
    """Measure all runs that the file lacks, until the time is up; every sample is in the file at once.

    A run that has begun is ended. Raises DSparkError of the first request that fails.
    """
    began = bench.clock()
    missing = [run for run in runs if run not in file.measured]
    task = progress.add_task("runs", total=len(missing))
    for run in missing:
        if max_seconds is not None and bench.clock() - began >= max_seconds:
            return
        file.add(measure(bench, run, progress), runs)
        progress.advance(task)


def measure(bench: Bench, run: Run, progress: Progress) -> Sample:
    """Set the policy, run the load. Raises DSparkError of the first request that fails."""
    requests = requests_of(run, bench.prompts, bench.size, bench.generation)
    switch_policy(bench, run.policy, requests[0])
    reading = CounterReading(bench.metrics_address) if bench.metrics_address else None
    label = f"{run.policy}, {run.level}, {run.domain}, repeat {run.repeat + 1}"
    if run.rate is None:
        result = run_load(bench.engines, requests, run.concurrency or 1, progress, label, bench.clock)
    else:
        arrivals = poisson_arrivals(run.rate, len(requests), (bench.generation.seed or 0) + run.repeat)
        result = run_arrivals(bench.engines, requests, arrivals, progress, label, bench.clock, bench.sleep)
    return summarise_load(run, result, bench.goals, reading.growth() if reading else None)


def switch_policy(bench: Bench, policy: str, request: Generation) -> None:
    """Answer a short request alone under the policy, which later requests keep.

    Tries again while others are still being answered. Raises DSparkError where the server does not change.
    """
    deadline = bench.clock() + SWITCH_TIMEOUT_S
    alone = replace(request, policy=policy, max_tokens=min(WARM_UP_TOKENS, request.max_tokens or WARM_UP_TOKENS))
    while True:
        try:
            generate(bench.engines, alone)
            return
        except DSparkError as error:
            if not is_overload(error) or bench.clock() >= deadline:
                raise
        bench.sleep(SWITCH_PAUSE_S)


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Identifies what is asked, in order."""
    text = "\n".join(f"{prompt.id} {prompt.domain} {prompt.turns[0]}" for prompt in prompts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
