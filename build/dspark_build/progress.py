"""How long work says where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# (what is being done, units done, units in all)
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """One bar for every kind of work, on the terminal while the context lasts."""
    from rich.progress import Progress as Bars

    with Bars() as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield report
