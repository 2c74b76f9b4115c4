"""The services of the profile `cpu` without Docker: their commands, environment and checkout, on a tiny model."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from composition import environment, image_environment, program, services
from dspark.engines.contract import EngineFolder
from dspark.scheduling.curve_record import (
    CurveRecord,
    DrafterPoint,
    TargetPoint,
    engine_fingerprint,
    machine_fingerprint,
)
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.tiny import make_tiny_target
from dspark_client.paths import REPOSITORY
from dspark_client.ports import Ports, free_ports

pytestmark = pytest.mark.serving

NAME, VOCABULARY, GAMMA = "tiny", 320, 4
START_S, STOP_S = 120.0, 30.0
Ended = subprocess.CompletedProcess[str]
CPU_IMAGE = REPOSITORY / "build" / "docker" / "cpu.Dockerfile"


@dataclass(frozen=True)
class Container:
    """Stands in for a container: a folder for the volume, the image's environment, the checkout as working folder."""

    root: Path

    @property
    def engine(self) -> EngineFolder:
        return EngineFolder(self.root / "volume" / "engines" / NAME / "fp32")

    def variables(self, service: str) -> dict[str, str]:
        """What the image and the service set, with the container's paths as they are here."""
        found = image_environment(CPU_IMAGE) | environment(self.services()[service])
        here = {
            "/dspark": str(REPOSITORY), "/engines": str(self.root / "volume"), "/models": str(self.root / "models"),
            "/tmp": str(self.root / "tmp"),
        }
        for name, value in found.items():
            parts = value.split(":")
            found[name] = ":".join(
                next((place + part[len(at):] for at, place in here.items() if part.startswith(at)), part)
                for part in parts
            )
        path = os.pathsep.join((str(self.root / "bin"), str(Path(sys.executable).parent), "/usr/bin", "/bin"))
        return {**found, "PATH": path}

    def services(self) -> dict[str, dict[str, object]]:
        """As a user would name a model of their own."""
        return services({
            "DSPARK_MODEL": NAME, "DSPARK_SOURCE": f"/models/{NAME}", "DSPARK_DRAFTER": "/models/drafter",
            "DSPARK_ENGINE": "fp32", "DSPARK_PROFILE_MINUTES": "0.02",
        })

    def run(self, service: str, command: list[str] | None = None) -> Ended:
        """Run a service to its end; with `command`, that one in it, as `docker compose run` and `exec` do."""
        return subprocess.run(
            command or program(self.services()[service]), env=self.variables(service), cwd=REPOSITORY,
            capture_output=True, text=True, timeout=300,
        )


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    root = tmp_path_factory.mktemp("container")
    for name in ("volume", "tmp", "bin"):
        (root / name).mkdir()
    shutil.copy(REPOSITORY / "build" / "docker" / "dspark", root / "bin" / "dspark")
    checkpoint = make_tiny_target(root / "models" / NAME, vocabulary=VOCABULARY)
    drafter = initialise_drafter(
        checkpoint, target_layer_ids=[0, 1], start_layers=[1], block_size=GAMMA, mask_token_id=VOCABULARY - 1
    )
    save_drafter_checkpoint(drafter, root / "models" / "drafter", checkpoint)
    return Container(root)


@dataclass(frozen=True)
class Built:
    """The second run of the service that builds, and the files of its engine before and after it."""

    ended: Ended
    before: dict[str, int]
    after: dict[str, int]


@pytest.fixture(scope="module")
def built(container: Container) -> Built:
    """The engine that the service has built, with a curve of made-up times.

    What is measured in a second on a busy machine may be refused, which ends the service; so it is run again.
    """
    first = container.run("build-cpu")
    assert (container.engine.target / "engine.json").is_file(), first.stderr
    sizes = [(r, k) for r in (1, 2, 4, 8) for k in (1, 2, 4, 5)]
    CurveRecord(
        engine_fingerprint(container.engine), machine_fingerprint(0), "2026-01-01T00:00:00+00:00", True,
        tuple(TargetPoint(r, float(k), 32.0, 9, 0.01 + 2e-4 * r * k, 1e-5) for r, k in sizes),
        tuple(DrafterPoint(r, 9, 2e-4 + 1e-5 * r, 1e-5) for r in (1, 2, 4, 8)),
    ).write(container.engine)
    before = state(container.engine.root)
    return Built(container.run("build-cpu"), before, state(container.engine.root))


@pytest.fixture(scope="module")
def server(container: Container, built: Built) -> Iterator[tuple[subprocess.Popen[str], Ports]]:
    """The server's own command, but for ports that are free here."""
    ports = free_ports()
    moved = [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
    started = subprocess.Popen(
        [*program(container.services()["server-cpu"]), *moved], env=container.variables("server-cpu"), cwd=REPOSITORY,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    yield started, ports
    started.kill()
    started.wait()


def state(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def healthy(container: Container, ports: Ports) -> bool:
    """The health check's command, at the port that is used here."""
    check = container.services()["server-cpu"]["healthcheck"]["test"][1:]  # type: ignore[index]
    return container.run("server-cpu", [*check, "--address", f"127.0.0.1:{ports.grpc}"]).returncode == 0


def test_the_second_build_keeps_what_the_first_one_made(built: Built) -> None:
    assert built.ended.returncode == 0, built.ended.stderr
    said = " ".join(built.ended.stdout.split())
    assert "is built already" in said and "is measured already" in said
    assert built.before == built.after


def test_the_doctor_finds_the_engine_measured(container: Container, built: Built) -> None:
    ports = free_ports()
    result = container.run("server-cpu", [
        "dspark", "doctor", "--engine", "fp32", "--checkpoint", NAME, "--http-port", str(ports.http),
        "--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics),
    ])
    assert result.returncode == 0 and f"{NAME}/fp32 curve" in result.stdout


def test_the_server_becomes_healthy_answers_and_stops_when_told(
    container: Container, server: tuple[subprocess.Popen[str], Ports]
) -> None:
    process, ports = server
    deadline = time.monotonic() + START_S
    while not healthy(container, ports):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout and process.stdout.read()
    answer = container.run(
        "server-cpu", ["dspark", "ask", "hello", "--address", f"127.0.0.1:{ports.grpc}", "--max-tokens", "4"]
    )
    assert answer.returncode == 0 and answer.stdout
    process.send_signal(signal.SIGTERM)          # what `docker compose stop` sends
    assert process.wait(STOP_S) == 0
    assert not healthy(container, ports)


def test_nothing_was_written_outside_of_the_volume(container: Container, built: Built) -> None:
    assert (container.root / "volume" / "engines" / NAME).is_dir()
    assert not (REPOSITORY / ".dspark" / "engines" / NAME).exists()
    assert not (REPOSITORY / ".dspark" / "checkpoints" / NAME).exists()
