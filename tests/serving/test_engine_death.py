"""An engine process that dies in mid-round: requests in flight end with a clear error, and the server returns."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import model_repository
from dspark.settings import ServingSettings
from dspark_client.errors import RemoteError
from dspark_client.server import SupervisedServer, running_server
from dspark_client.transport import Connection, Generation

pytestmark = pytest.mark.serving
PATIENCE_S = 120


def model_process(server: SupervisedServer, model: str) -> int:
    """The process id of a model's stub, which names its shared memory after the model."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if parent == str(server.pid) and any(f"/{model}/1/".encode() in word for word in words):
            return int(entry.name)
    raise AssertionError(f"no process serves {model}")


@pytest.mark.parametrize("model", ["target", "drafter"])
def test_requests_in_flight_end_as_unavailable_when_an_engine_dies(tiny_settings: ServingSettings, model: str) -> None:
    with (
        running_server(tiny_settings, model_repository()) as server,
        Connection(server.grpc_address) as connection, ThreadPoolExecutor(12) as pool,
    ):
        started = threading.Barrier(13)

        def run(seed: int) -> RemoteError | None:
            chunks = iter(connection.generate(
                Generation(text_input="x", max_tokens=250, ignore_eos=True, temperature=1.0, seed=seed), PATIENCE_S
            ))
            try:
                if seed < 8:                      # as many as there are slots; the others wait
                    next(chunks)
                started.wait(PATIENCE_S)
                for _ in chunks:
                    pass
            except RemoteError as error:
                return error
            return None

        outcomes = [pool.submit(run, seed) for seed in range(12)]
        started.wait(PATIENCE_S)
        os.kill(model_process(server, model), signal.SIGKILL)
        errors = [outcome.result() for outcome in outcomes]
        assert any(errors) and all(error is None or error.code == "UNAVAILABLE" for error in errors)

        deadline = time.monotonic() + PATIENCE_S
        while server.restarts == 0 or not server.wait_ready(1.0):
            assert time.monotonic() < deadline
        assert run_to_the_end(server) == 5


def run_to_the_end(server: SupervisedServer) -> int:
    with Connection(server.grpc_address) as connection:
        answer = connection.generate(Generation(text_input="x", max_tokens=5, ignore_eos=True), PATIENCE_S)
        return sum(len(chunk.token_ids) for chunk in answer)
