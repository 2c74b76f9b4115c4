"""A supervised Triton server: started, watched, started again when it dies, and stopped without a trace."""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark.errors import DSparkError
from dspark.settings import SETTINGS_VARIABLE, ServingSettings

from dspark_client.errors import ServerError
from dspark_client.ports import Addresses, Ports, free_ports, require_free
from dspark_client.server_log import ServerLog
from dspark_client.server_run import Patience, ServerPlan, ServerRun
from dspark_client.triton import find_triton

log = logging.getLogger("dspark.server")
FREE_PORT_TRIES = 3


class SupervisedServer:
    """One server from `start` to `stop`, through as many restarts as it takes.

    A thread owns the process: the kernel ties the server's life to the thread that started it (see `keeper.py`).
    Raises ConfigurationError when no Triton server is installed.
    """

    def __init__(
        self, settings: ServingSettings, model_repository: Path, ports: Ports,
        host: str = "127.0.0.1", patience: Patience | None = None,
    ) -> None:
        triton = find_triton()
        self._ports, self._host = ports, host
        self._patience = patience or Patience()
        self._folder = Path(tempfile.mkdtemp(prefix="dspark-serve-"))
        settings_file = self._folder / "settings.json"
        settings.write(settings_file)
        prefix = f"dspark-{secrets.token_hex(6)}-"
        addresses = Addresses.local(host, ports)
        self.http_address, self.grpc_address, self.metrics_address = addresses.http, addresses.grpc, addresses.metrics
        self.log_file = (server_log := ServerLog()).path
        self._plan = ServerPlan(
            command=tuple(triton.command(model_repository, host, ports, prefix)),
            environment={**triton.environment, SETTINGS_VARIABLE: str(settings_file)},
            addresses=addresses, shared_memory_prefix=prefix, log=server_log, patience=self._patience,
        )
        self.restarts = 0
        self._pid: int | None = None
        self._failure: ServerError | None = None
        self._ready, self._ended, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._live, name="dspark-server", daemon=True)

    @property
    def pid(self) -> int:
        """The server's process now; another one after a restart."""
        if self._pid is None:
            raise ServerError("the server has not answered yet")
        return self._pid

    def start(self, give_up: threading.Event | None = None) -> bool:
        """Return True once the server has answered an inference, False when `give_up` was set before.

        Raises ConfigurationError or ServerError when it does not start; nothing is left then.
        """
        try:
            require_free(self._ports, self._host)
            self._thread.start()
            while not (self._ready.wait(self._patience.look_every) or self._ended.is_set()):
                if give_up is not None and give_up.is_set():
                    self.stop()
            if self._failure is not None:
                raise self._failure
            return self._ready.is_set()
        except BaseException:
            self.stop()
            raise

    def wait(self, timeout_s: float | None = None) -> bool:
        """True once the server is gone for good. Raises ServerError when the supervisor had to give up."""
        ended = self._ended.wait(timeout_s)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the server to be able to answer, after a restart too."""
        return self._ready.wait(timeout_s)

    def stop(self) -> None:
        """End every process and remove every file of this server; bounded, and safe to call twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _live(self) -> None:
        try:
            self._live_and_restart()
        except ServerError as error:
            self._failure = error
        except Exception as error:
            self._failure = ServerError(f"supervision failed: {error!r}")
        finally:
            self._ended.set()

    def _live_and_restart(self) -> None:
        deaths = 0
        while True:
            reason, lived_s = self._live_once()
            if self._stopping.is_set():
                return
            deaths = 1 if lived_s > self._patience.settled else deaths + 1
            if deaths > len(self._patience.pauses):
                raise ServerError(f"given up after {deaths} deaths in a row ({reason}); log: {self.log_file}")
            log.warning("%s; restarting", reason)
            self.restarts += 1
            self._stopping.wait(self._patience.pauses[deaths - 1])

    def _live_once(self) -> tuple[str, float]:
        """Why this life ended, and for how long it could answer, in s. Raises ServerError if the first never could."""
        run = ServerRun(self._plan, self._stopping)
        ready_at = None
        try:
            if run.await_first_answer():
                self._pid, ready_at = run.pid, time.monotonic()
                self._ready.set()
            reason = run.watch()
        except ServerError as error:
            if not self.restarts:                     # it never worked: trying again would not help
                raise
            reason = str(error)
        finally:
            self._ready.clear()
            run.end()
        return reason, 0.0 if ready_at is None else time.monotonic() - ready_at


@contextmanager
def running_server(
    settings: ServingSettings, model_repository: Path, ports: Ports | None = None, patience: Patience | None = None,
) -> Iterator[SupervisedServer]:
    """A server on 127.0.0.1 for the length of a `with` block; on free ports, unless told which.

    Raises ConfigurationError or ServerError when it does not start.
    """
    server = _start(settings, model_repository, ports, patience)
    try:
        yield server
    finally:
        server.stop()


def _start(
    settings: ServingSettings, model_repository: Path, ports: Ports | None, patience: Patience | None,
) -> SupervisedServer:
    """Start a server; on other free ports, should another process have taken one of the first in between."""
    for tries_left in reversed(range(FREE_PORT_TRIES)):
        server = SupervisedServer(settings, model_repository, ports or free_ports(), patience=patience)
        try:
            server.start()
            break
        except DSparkError as error:
            if ports is not None or not tries_left or "already in use" not in str(error):
                raise
    return server
