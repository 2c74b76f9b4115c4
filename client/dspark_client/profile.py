"""`dspark profile`: the times of target and drafter steps on this machine, as the scheduler's throughput curve.

Steps are timed at the engines, in this process. What Triton adds to each, the server learns from the steps it serves
(scheduling/online.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
from dspark.engines.contract import DrafterEngine, EngineFolder, TargetEngine
from dspark.engines.drafter_record import DrafterRecord
from dspark.engines.engine_json import TargetRecord, engine_name, read_record
from dspark.engines.loading import load_drafter, load_target
from dspark.errors import ConfigurationError
from dspark.scheduling.curve import ThroughputCurve
from dspark.scheduling.curve_record import (
    CurveRecord,
    DrafterPoint,
    TargetPoint,
    engine_fingerprint,
    machine_fingerprint,
)

from dspark_client.deployment import block_size
from dspark_client.profile_rig import Clock, Rig
from dspark_client.profile_sizes import DrafterSize, Size, TargetSize, drafter_sizes, plan_slots, target_sizes
from dspark_client.profile_timing import Advance, Times, complaint, measure, spread

FILLING = 0.25                       # share of the time after which longer contexts are given up


@dataclass(frozen=True)
class ProfileReport:
    """The result, in the names of its JSON; `curve` is what was written to `file`."""

    file: str
    seconds: float
    message: str                     # empty, or why the curve is not stable
    curve: CurveRecord


def profile(folder: EngineFolder, threads: int, minutes: float, seed: int = 0) -> ProfileReport:
    """Measure the engines in a folder and write its curve.json.

    Raises ConfigurationError, and leaves what was there, when no engine was built, when the time does not suffice, or
    when the times contradict each other.
    """
    started = time.perf_counter()
    with _progress() as advance:
        advance("loading the engines", 0.0)
        with closing(load_target(folder.target, threads)) as target, closing(load_drafter(folder.drafter)) as drafter:
            return profile_engines(
                folder, target, drafter, threads, started + 60.0 * minutes, time.perf_counter, advance, seed
            )


def is_measured(folder: EngineFolder, threads: int) -> bool:
    """Whether the folder has a curve that this machine can use. Raises ConfigurationError where nothing was built."""
    gamma = block_size(folder)
    try:
        ThroughputCurve.read(folder, gamma, threads)
    except ConfigurationError:
        return False
    return True


def profile_engines(
    folder: EngineFolder, target: TargetEngine, drafter: DrafterEngine, threads: int, deadline: float,
    clock: Clock = time.perf_counter, advance: Advance = lambda what, share: None, seed: int = 0,
) -> ProfileReport:
    """Measure loaded engines until every median is settled, at most up to `deadline` on the clock (see `profile`)."""
    started, random = clock(), np.random.default_rng(seed)
    slots = plan_slots(target.limits)
    rig = Rig(target, drafter, slots, clock, random)
    gamma = min(target.limits.max_draft_tokens, drafter.limits.block_size)
    target_edge, drafter_edge = _edges(folder)
    sizes: list[Size] = [
        *drafter_sizes(drafter.limits, target.limits.max_slots, drafter_edge),
        *target_sizes(target.limits, gamma, slots, target_edge),
    ]
    for share in rig.fill():
        advance("filling slots", share)
        if rig.ready and clock() > started + FILLING * (deadline - started):
            break
    times = measure(rig, sizes, deadline, random, advance)
    message = complaint(sizes, times)
    record = CurveRecord(
        engine=engine_fingerprint(folder), machine=machine_fingerprint(threads),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"), stable=not message,
        target=_target_points(rig, times), drafter=_drafter_points(times),
    )
    if not record.target or not record.drafter:
        raise ConfigurationError(f"the time was not enough to measure this engine ({message}): give more --minutes")
    ThroughputCurve.of(record, gamma)
    file = record.write(folder)
    return ProfileReport(str(file), round(clock() - started, 1), message, record)


def _target_points(rig: Rig, times: Times) -> tuple[TargetPoint, ...]:
    """The points of all numbers of sequences of which more than one size was measured."""
    sizes = sorted(
        (size for size in times if isinstance(size, TargetSize)), key=lambda s: (s.sequences, s.tokens, s.long)
    )
    tokens: dict[int, set[int]] = {}
    for size in sizes:
        tokens.setdefault(size.sequences, set()).add(size.tokens)
    points: dict[tuple[int, int, float], TargetPoint] = {}
    for size in sizes:
        if len(tokens[size.sequences]) > 1:
            context = round(rig.context(size), 1)      # the same twice where long contexts were given up
            found = times[size]
            points[size.sequences, size.tokens, context] = TargetPoint(
                size.sequences, size.tokens / size.sequences, context, len(found), float(np.median(found)),
                spread(found),
            )
    return tuple(points.values())


def _drafter_points(times: Times) -> tuple[DrafterPoint, ...]:
    return tuple(
        DrafterPoint(size.sequences, len(found), float(np.median(found)), spread(found))
        for size, found in times.items() if isinstance(size, DrafterSize)
    )


def _edges(folder: EngineFolder) -> tuple[int, int]:
    """Tokens of the target, and sequences of the drafter, that run in one piece; 0: any number, or not known."""
    target = drafter = 0
    if engine_name(folder.target) == TargetRecord.engine:
        target = read_record(folder.target, TargetRecord).rows.max_tokens_per_run
    if engine_name(folder.drafter) == DrafterRecord.engine:
        drafter = read_record(folder.drafter, DrafterRecord).requests_per_run.most
    return target, drafter


@contextmanager
def _progress() -> Iterator[Advance]:
    """A bar for every stage on stderr, with the time that it will still take."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def advance(what: str, share: float) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bars.update(task, completed=1.0)
                tasks[what] = bars.add_task(what, total=1.0)
            bars.update(tasks[what], completed=share)

        yield advance
        for task in tasks.values():
            bars.update(task, completed=1.0)

