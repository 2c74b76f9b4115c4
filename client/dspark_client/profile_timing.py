"""Timing steps of many sizes in turns until their medians are known, or the time is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dspark_client.profile_rig import Rig
from dspark_client.profile_sizes import Size

LEAST, MOST = 7, 40                  # measurements of a size
SETTLED = 0.03                       # standard error of a median, relative
WARMING_UP = 0.5                     # share of the time after which sizes that had no turn yet are given up
ERROR_OF_MEDIAN = 1.2533 / 1.349     # times interquartile range / sqrt(n): standard error of a normal sample's median

Times = Mapping[Size, list[float]]
Advance = Callable[[str, float], None]       # (what is being done, share done)


def measure(
    rig: Rig, sizes: Sequence[Size], deadline: float, random: np.random.Generator, advance: Advance,
) -> Times:
    """Seconds of steps of every size, in random order again and again until all medians are settled.

    The first step of a size prepares kernels and does not count. Sizes for which the time ends are left out.
    """
    clock = rig.clock
    started = clock()
    times: dict[Size, list[float]] = {}
    for number, size in enumerate(sizes):
        if clock() > started + WARMING_UP * (deadline - started):
            break
        rig.seconds(size)
        times[size] = []
        advance("warming up", (number + 1) / len(sizes))
    steps = 0
    while open_sizes := [size for size, found in times.items() if not _settled(found) and len(found) < MOST]:
        planned = steps + sum(max(LEAST - len(times[size]), 1) for size in open_sizes)
        for index in random.permutation(len(open_sizes)):
            if clock() > deadline:
                return _measured(times)
            times[open_sizes[index]].append(rig.seconds(open_sizes[index]))
            steps += 1
            advance("measuring", steps / planned)
    return _measured(times)


def _measured(times: Times) -> Times:
    return {size: found for size, found in times.items() if found}


def _settled(times: list[float]) -> bool:
    return len(times) >= LEAST and ERROR_OF_MEDIAN * spread(times) / len(times) ** 0.5 < SETTLED * np.median(times)


def spread(times: list[float]) -> float:
    """The interquartile range."""
    low, high = np.percentile(times, [25, 75])
    return float(high - low)


def complaint(sizes: Sequence[Size], times: Times) -> str:
    """What is wrong with the measurement; empty if nothing is."""
    unsettled = [size for size, found in times.items() if not _settled(found)]
    missing = len(sizes) - len(times)
    parts = [f"there was no time for {missing} of {len(sizes)} sizes of step"] if missing else []
    if unsettled:
        parts.append(f"{len(unsettled)} of {len(sizes)} sizes of step were measured too seldom for their noise")
    return " and ".join(parts)
