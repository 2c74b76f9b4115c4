"""Is the server alive? Asked by inference, because Triton's own health answer ignores a dead or hung model process."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from dspark_client.errors import RemoteError
from dspark_client.metrics import read_metrics
from dspark_client.transport import Connection, Generation

PROBE_TIMEOUT_S = 15.0


def probe(grpc_address: str, timeout_s: float) -> None:
    """Ask for one token. Raises RemoteError when none comes."""
    with Connection(grpc_address) as connection:
        for _ in connection.generate(Generation(text_input="Hello", max_tokens=1), timeout_s):
            pass


def steps_done(metrics_address: str, timeout_s: float) -> float | None:
    """Target steps that succeeded since the server started (Triton's own metrics); None where unknown."""
    try:
        return read_metrics(metrics_address, timeout_s, model="target").get("nv_inference_request_success")
    except OSError:
        return None


class Pulse:
    """Probes one server again and again, in the background.

    A probe that fails is excused while the target still completes steps: with a full queue a probe is refused, or
    waits for minutes, and the server is as alive as can be.
    """

    def __init__(self, grpc_address: str, metrics_address: str, timeout_s: float) -> None:
        self._grpc_address, self._metrics_address, self._timeout_s = grpc_address, metrics_address, timeout_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dspark-probe")
        self._probing: Future[None] | None = None
        self._steps = steps_done(metrics_address, timeout_s)
        self.failure = ""                             # what the last probe met, empty when all is well
        self.failures = 0                             # probes failed in a row

    def start(self) -> None:
        """Start a probe, unless one is under way."""
        if self._probing is None or self._probing.done():
            self._probing = self._pool.submit(self._probe)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _probe(self) -> None:
        try:
            probe(self._grpc_address, self._timeout_s)
            failure = ""
        except RemoteError as error:
            failure = str(error)
        steps = steps_done(self._metrics_address, self._timeout_s)
        works = steps is not None and steps != self._steps
        self._steps = steps
        self.failure, self.failures = ("", 0) if works or not failure else (failure, self.failures + 1)
