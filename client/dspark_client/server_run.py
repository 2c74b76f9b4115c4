"""One life of a server process: start, first answer, watch, end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from dspark.errors import ConfigurationError

from dspark_client import processes
from dspark_client.errors import RemoteError, ServerError
from dspark_client.ports import Addresses
from dspark_client.probe import PROBE_TIMEOUT_S, Pulse, probe
from dspark_client.server_log import ServerLog
from dspark_client.triton import EXIT_TIMEOUT_S

KEEPER_S = 10.0                      # beyond its own patience, for ending what is left


@dataclass(frozen=True)
class Patience:
    """How long the supervisor waits for what, in seconds."""

    start: float = 300.0             # until the first inference succeeds: loading, compiling, warming up
    probe: float = PROBE_TIMEOUT_S              # for the answer to a probing inference
    probe_every: float = 5.0
    look_every: float = 0.2          # at the processes
    stop: float = EXIT_TIMEOUT_S + 4.0
    settled: float = 60.0            # a server that lived so long has its earlier deaths forgiven
    probes_missed: int = 2
    pauses: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0)   # before each restart in a row; then it gives up


@dataclass(frozen=True)
class ServerPlan:
    """What it takes to start the same server again."""

    command: tuple[str, ...]
    environment: dict[str, str]
    addresses: Addresses
    shared_memory_prefix: str
    log: ServerLog
    patience: Patience


class ServerRun:
    """A started server process, with its keeper as parent. `stopping` interrupts every wait."""

    def __init__(self, plan: ServerPlan, stopping: threading.Event) -> None:
        self._plan, self._patience, self._stopping = plan, plan.patience, stopping
        self.pid: int | None = None                   # of the server, known after the first answer
        self._model_processes: frozenset[processes.ProcessId] = frozenset()
        keeper = (sys.executable, "-m", "dspark_client.keeper", str(os.getpid()), str(plan.patience.stop),
                  plan.shared_memory_prefix)
        with plan.log.path.open("ab") as output:
            self._keeper = subprocess.Popen(
                [*keeper, *plan.command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=plan.environment,
                start_new_session=True,               # Ctrl-C in the terminal reaches the supervisor alone
            )

    def await_first_answer(self) -> bool:
        """True after a first inference, False when told to stop. Raises ServerError with the end of the log."""
        deadline = time.monotonic() + self._patience.start
        met = "its gRPC port stays closed"
        while not self._stopping.wait(self._patience.look_every):
            if self._keeper.poll() is not None:
                raise self._not_started(f"the server ended while starting (status {self._keeper.returncode})")
            if time.monotonic() > deadline:
                raise self._not_started(f"no answer within {self._patience.start:.0f} s: {met}")
            if not listens(self._plan.addresses.grpc):
                continue
            try:
                probe(self._plan.addresses.grpc, self._patience.probe)
            except RemoteError as error:
                met = str(error)
                if error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    raise self._not_started(f"the first inference failed: {met}") from error
            else:
                (server,) = processes.children(self._keeper.pid)
                self.pid, self._model_processes = server.pid, processes.children(server.pid)
                return True
        return False

    def watch(self) -> str:
        """Return when the server has to be ended, and why."""
        pulse = Pulse(self._plan.addresses.grpc, self._plan.addresses.metrics, self._patience.probe)
        next_probe = time.monotonic() + self._patience.probe_every
        try:
            while not self._stopping.wait(self._patience.look_every):
                if self._keeper.poll() is not None:
                    return f"the server ended (status {self._keeper.returncode})"
                if not all(child.alive() for child in self._model_processes):
                    return "a model process died"
                if pulse.failures >= self._patience.probes_missed:
                    return f"the server does not answer ({pulse.failure})"
                if time.monotonic() >= next_probe:
                    pulse.start()
                    next_probe = time.monotonic() + self._patience.probe_every
            return "asked to stop"
        finally:
            pulse.close()

    def end(self) -> None:
        """Leave no process and no shared memory of this life; what lost a model process cannot stop in good order."""
        self._keeper.send_signal(signal.SIGTERM if self._stopping.is_set() else signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(self._patience.stop + KEEPER_S)
        self._keeper.kill()
        self._keeper.wait()

    def _not_started(self, reason: str) -> ServerError:
        return ServerError(f"{reason}\n{self._plan.log.tail()}")


def listens(address: str) -> bool:
    """Whether something accepts connections at host:port. Raises ConfigurationError when it is not of that form."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"address {address!r}: host:port is expected, such as 127.0.0.1:8001")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True
