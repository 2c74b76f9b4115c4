"""Processes and shared memory of a server, through /proc and /dev/shm: who its children are, and ending them all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.05


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be confused with a later one of the same number."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """False once it has ended, also while it still waits to be reaped."""
        state = _state(self.pid)
        return state is not None and state[2] == self.start_ticks and state[0] not in "ZX"

    def kill(self) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _state(pid: int) -> tuple[str, int, int] | None:
    """(state letter, parent pid, start time in clock ticks), or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2:].split()      # the command's name, in brackets, may contain anything
    return fields[0], int(fields[1]), int(fields[19])


def children(pid: int) -> frozenset[ProcessId]:
    """The living direct children of a process."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state = _state(int(entry))
            if state is not None and state[1] == pid and state[0] not in "ZX":
                found.add(ProcessId(int(entry), state[2]))
    return frozenset(found)


def stop(process: subprocess.Popen[bytes], offspring: frozenset[ProcessId], patience_s: float) -> None:
    """End a server and its model processes: TERM, and KILL for whatever is left after `patience_s`.

    `offspring` are children seen earlier: one that lost its parent no longer shows as a child.
    """
    offspring = offspring | children(process.pid)
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 1.0                 # model processes leave on their own once the server is gone
    while any(child.alive() for child in offspring) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for child in offspring:
        child.kill()


def remove_shared_memory(prefix: str) -> None:
    """Remove the /dev/shm files that killed model processes left behind."""
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
