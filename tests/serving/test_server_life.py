"""A supervised server: what dies comes back, what stops leaves nothing. On a model of a few lines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from dspark.errors import ConfigurationError
from dspark.settings import ServingSettings
from dspark_client import processes
from dspark_client.errors import RemoteError, ServerError
from dspark_client.ports import Ports, free_ports
from dspark_client.server import SupervisedServer, running_server
from dspark_client.server_run import Patience
from dspark_client.transport import Connection, Generation, TokenStream

pytestmark = pytest.mark.serving

CONFIG = """
name: "dspark"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
        { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
COUNTER = """
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.count, args=(request, request.get_response_sender()), daemon=True).start()

    def count(self, request, sender):
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
        if text == "refused":
            error = pb_utils.TritonError("INVALID_ARGUMENT: not this", pb_utils.TritonError.INVALID_ARG)
            return sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
        for number in range(int(pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy()[0])):
            if sender.is_cancelled():
                break
            text = pb_utils.Tensor("text_output", np.array([b"%d " % number], object))
            sender.send(pb_utils.InferenceResponse([text]))
            time.sleep(0.01)
        sender.send(flags=FINAL)
"""
TARGET_CONFIG = """
name: "target"
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
TARGET = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]) for x in inputs]
"""
# Answers its first request, then has no room for any other, but works: steps of the target, until told to get stuck.
FULL_HOUSE = """
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def initialize(self, args):
        self.first, self.stuck = True, threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        while not self.stuck.wait(0.02):
            x = pb_utils.Tensor("x", np.zeros(1, np.int32))
            pb_utils.InferenceRequest(model_name="target", requested_output_names=["y"], inputs=[x]).exec()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            if pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0] == b"get stuck":
                self.stuck.set()
            if self.first:
                self.first = False
                self.thread.start()
                sender.send(flags=FINAL)
            else:
                error = pb_utils.TritonError("UNAVAILABLE: the queue is full")
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)

    def finalize(self):
        self.stuck.set()
"""
SETTINGS = ServingSettings(engine_folder="unused")
QUICK = Patience(start=60.0, probe=1.0, probe_every=0.3, look_every=0.05, stop=4.0, pauses=(0.0, 0.1))
FOREVER = Generation(text_input="count", max_tokens=1_000_000)


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPARK_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"), COUNTER)


@pytest.fixture(scope="module")
def calm_server(repository: Path) -> Iterator[SupervisedServer]:
    """For tests that do the server no harm."""
    with running_server(SETTINGS, repository, patience=QUICK) as server:
        yield server


@pytest.fixture
def server(repository: Path) -> Iterator[SupervisedServer]:
    with running_server(SETTINGS, repository, patience=QUICK) as server:
        yield server


def write_repository(root: Path, source: str, target: str = "") -> Path:
    models = {"dspark": (CONFIG, source)} | ({"target": (TARGET_CONFIG, target)} if target else {})
    for name, (config, code) in models.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        (root / name / "1" / "model.py").write_text(code)
    return root


def shared_memory(pids: set[int]) -> list[str]:
    """The shared-memory files that these processes have open."""
    found = set()
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/dev/shm/" in line:
                found.add(line.split()[-1])
    return sorted(found)


def family(supervisor: int) -> frozenset[processes.ProcessId]:
    """What a supervisor started: keepers, servers, model processes."""
    found = processes.children(supervisor)
    return found.union(*(family(child.pid) for child in found))


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def count(address: str, up_to: int) -> str:
    with Connection(address) as connection:
        answer = connection.generate(Generation(text_input="count", max_tokens=up_to), timeout_s=30.0)
        return "".join(chunk.text for chunk in answer)


def first_token(stream: TokenStream) -> Iterator[object]:
    answers = iter(stream)
    next(answers)
    return answers


def test_a_killed_model_process_is_noticed_and_the_server_comes_back(server: SupervisedServer) -> None:
    first_life = server.pid
    (model_process,) = processes.children(first_life)
    with Connection(server.grpc_address) as connection:
        in_flight = first_token(connection.generate(FOREVER))
        os.kill(model_process.pid, signal.SIGKILL)
        with pytest.raises(RemoteError, match="UNAVAILABLE"):
            for _ in in_flight:
                pass
    assert eventually(lambda: server.restarts == 1 and server.wait_ready(0.1))
    assert server.pid != first_life
    assert count(server.grpc_address, 3) == "0 1 2 "


def test_a_hung_model_process_is_noticed_by_the_probing_inference(server: SupervisedServer) -> None:
    (model_process,) = processes.children(server.pid)
    os.kill(model_process.pid, signal.SIGSTOP)
    assert eventually(lambda: server.restarts == 1 and server.wait_ready(0.1))
    assert not model_process.alive()
    assert count(server.grpc_address, 2) == "0 1 "


def test_a_server_with_a_full_queue_is_left_alone_as_long_as_it_works(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "full", FULL_HOUSE, TARGET)
    with running_server(SETTINGS, repository, patience=QUICK) as server, Connection(server.grpc_address) as connection:
        for text in ("anything", "get stuck"):
            time.sleep(3 * QUICK.probes_missed * QUICK.probe_every)
            assert server.restarts == 0
            with pytest.raises(RemoteError, match="UNAVAILABLE: the queue is full"):
                list(connection.generate(Generation(text_input=text, max_tokens=1)))
        assert eventually(lambda: server.restarts == 1)


def test_a_killed_server_process_comes_back(server: SupervisedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: server.restarts == 1 and server.wait_ready(0.1))
    assert count(server.grpc_address, 2) == "0 1 "


def test_a_server_that_keeps_dying_is_given_up_with_the_reason(server: SupervisedServer) -> None:
    def kill_whenever_it_lives() -> bool:
        with contextlib.suppress(ProcessLookupError):    # killed already, not noticed yet
            os.kill(server.pid, signal.SIGKILL)
        try:
            return server.wait(0.05)
        except ServerError as error:
            assert "given up after 3 deaths" in str(error)
            return True

    assert eventually(kill_whenever_it_lives)


def test_a_server_that_answers_is_left_alone(calm_server: SupervisedServer) -> None:
    life = calm_server.pid
    time.sleep(4 * QUICK.probe_every)
    assert (calm_server.pid, calm_server.restarts) == (life, 0)


def test_stopping_ends_every_process_and_removes_every_file(repository: Path) -> None:
    others = family(os.getpid())
    with running_server(SETTINGS, repository, patience=QUICK):
        members = family(os.getpid()) - others
        files = shared_memory({member.pid for member in members})
        assert len(members) == 3 and files
    assert not any(member.alive() for member in members)
    assert not any(Path(file).exists() for file in files)


def test_stopping_ends_a_server_that_is_busy_streaming(repository: Path) -> None:
    others = family(os.getpid())
    with running_server(SETTINGS, repository, patience=QUICK) as server, Connection(server.grpc_address) as connection:
        members = family(os.getpid()) - others
        in_flight = first_token(connection.generate(FOREVER))
        server.stop()
        with pytest.raises(RemoteError):
            for _ in in_flight:
                pass
    assert not any(member.alive() for member in members)


def test_a_supervisor_that_is_killed_takes_its_server_along(repository: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        from dspark.settings import ServingSettings
        from dspark_client.server import running_server
        with running_server(ServingSettings("unused"), Path({str(repository)!r})) as server:
            print(server.pid, flush=True)
            time.sleep(600)
    """
    supervisor = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline()
    members = family(supervisor.pid)
    files = shared_memory({member.pid for member in members})
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    assert len(members) == 3 and files
    assert eventually(lambda: not any(member.alive() for member in members))
    assert eventually(lambda: not any(Path(file).exists() for file in files))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_dspark_serve_leaves_nothing(repository: Path, number: signal.Signals) -> None:
    ports = free_ports()
    script = f"""
        from pathlib import Path
        from dspark.settings import ServingSettings
        from dspark_client.ports import Ports
        from dspark_client.serve import serve
        serve(ServingSettings("unused"), Path({str(repository)!r}), {ports!r}, "127.0.0.1")
    """
    supervisor = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    while "Ctrl-C" not in supervisor.stdout.readline():
        assert supervisor.poll() is None
    members = family(supervisor.pid)
    files = shared_memory({member.pid for member in members})
    supervisor.send_signal(number)
    output, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0 and output.endswith("stopped\n")
    assert len(members) == 3 and not any(member.alive() for member in members)
    assert files and not any(Path(file).exists() for file in files)


def test_a_port_in_use_is_said_before_anything_starts(repository: Path, calm_server: SupervisedServer) -> None:
    taken, others = int(calm_server.http_address.split(":")[1]), free_ports()
    in_use = SupervisedServer(SETTINGS, repository, Ports(taken, others.grpc, others.metrics))
    with pytest.raises(ConfigurationError, match=f"http port {taken} .*--http-port"):
        in_use.start()
    assert in_use.log_file.read_text() == ""
    assert count(calm_server.grpc_address, 1) == "0 "


def test_a_model_that_does_not_load_shows_the_end_of_the_log(tmp_path: Path) -> None:
    broken = write_repository(tmp_path / "broken", "raise RuntimeError('no engine here')")
    with pytest.raises(ServerError, match="no engine here"), running_server(SETTINGS, broken, patience=QUICK):
        pass


def test_a_refusal_carries_tritons_code_and_the_next_request_is_served(calm_server: SupervisedServer) -> None:
    with Connection(calm_server.grpc_address) as connection:
        with pytest.raises(RemoteError) as refused:
            list(connection.generate(Generation(text_input="refused", max_tokens=1)))
        assert (refused.value.code, refused.value.details) == ("INVALID_ARGUMENT", "not this")
        assert len(list(connection.generate(Generation(text_input="count", max_tokens=5)))) == 5


def test_a_cancelled_stream_ends_and_leaves_the_others_alone(calm_server: SupervisedServer) -> None:
    with Connection(calm_server.grpc_address) as connection:
        streams = [connection.generate(FOREVER), connection.generate(Generation(text_input="count", max_tokens=50))]
        doomed, kept = (first_token(stream) for stream in streams)
        streams[0].cancel()
        with pytest.raises(RemoteError, match="CANCELLED"):
            list(doomed)
        assert len(list(kept)) == 49


def test_raw_inputs_reach_the_server_as_they_are(calm_server: SupervisedServer) -> None:
    inputs = {"text_input": np.array([b"count"], object), "max_tokens": np.array([1.5], np.float32)}
    with Connection(calm_server.grpc_address) as connection, pytest.raises(RemoteError, match="max_tokens"):
        list(connection.send(inputs))
