"""Keeps one server: starts a command, and leaves nothing of it when it ends, when told to, or when the supervisor dies.

    python -m dspark_client.keeper SUPERVISOR_PID PATIENCE_S SHARED_MEMORY_PREFIX COMMAND...

TERM stops the command in good order, QUIT at once; the supervisor's death counts as TERM. A program of its own, because
a killed supervisor can clean up nothing, and a model process whose server was killed may hang for ever. (Linux)
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

from dspark_client import processes

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36      # linux/prctl.h
WAKING = {signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD}
GONE = 1                                              # status where there is no supervisor to report to


def keep(supervisor: int, patience_s: float, shared_memory_prefix: str, command: list[str]) -> int:
    """Run the command until it ends or a signal comes; returns its status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)  # they wait for sigwait, so none is lost in between
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)             # model processes that lose their server become our children
    if os.getppid() != supervisor:
        return GONE

    def before_exec() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAKING)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    # Safe here: this process has one thread.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=before_exec)
    while server.poll() is None:
        told = signal.sigwait(WAKING)
        if told != signal.SIGCHLD:
            processes.end(server, patience_s if told == signal.SIGTERM else 0.0)
    processes.end_children()
    processes.remove_shared_memory(shared_memory_prefix)
    return abs(server.returncode)


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
