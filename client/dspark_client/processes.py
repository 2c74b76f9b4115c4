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
LEAVING_S = 1.0            # for model processes to leave on their own, once their server is gone


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be confused with a later one of the same number."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """False once it has ended, also while it still waits to be reaped."""
        state = _state(self.pid)
        return state is not None and state[2] == self.start_ticks and state[0] not in "ZX"


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


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """TERM, and KILL after `patience_s`; at once where that is 0."""
    if patience_s:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    process.kill()
    process.wait()


def end_children() -> None:
    """Wait shortly for this process's children, then KILL them, and those that become its children by that."""
    deadline = time.monotonic() + LEAVING_S
    while left := children(os.getpid()):
        if time.monotonic() > deadline:
            for child in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        time.sleep(POLL_S)


def remove_shared_memory(prefix: str) -> None:
    """Remove the /dev/shm files that killed model processes left behind."""
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
