"""`dspark doctor`: what it finds of engines, ports and machine, and when it says that a server can start."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dspark.engines.contract import DrafterLimits, EngineFolder, TargetLimits
from dspark.engines.drafter_record import DrafterRecord, RunSizes
from dspark.engines.engine_json import BuildFacts, TargetRecord, write_record
from dspark.engines.machine import cpu_model
from dspark.engines.rows import ATTENTION_PADDING, RowRules
from dspark.scheduling.curve_record import (
    CurveRecord,
    DrafterPoint,
    TargetPoint,
    engine_fingerprint,
    machine_fingerprint,
)
from dspark.settings import ServingSettings
from dspark_client.cli import app
from dspark_client.doctor import Diagnosis, Finding, Level, diagnose
from dspark_client.doctor.machine import GIB, Machine, machine_findings, parse_gpus, read_machine
from dspark_client.doctor.versions import installed_versions, library_finding, version_findings
from dspark_client.paths import REPOSITORY
from dspark_client.ports import Ports, free_ports
from typer.testing import CliRunner

GAMMA = 4
Settings = Callable[..., ServingSettings]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def engine(home: Path) -> EngineFolder:
    """What a build leaves behind, but for the graphs, which are not looked at."""
    folder = EngineFolder(home / "engines" / "model" / "int8")
    for part in (folder.target, folder.drafter, folder.tokenizer):
        part.mkdir(parents=True)
    facts = BuildFacts("model", "abc", "def", "int8", {"numpy": str(installed_versions()["numpy"])}, cpu_model())
    limits = TargetLimits(100, 8, 256, 4, 32, 32, GAMMA, GAMMA)
    rules = RowRules(ATTENTION_PADDING, min_rows_per_sequence=2, min_rows_per_run=2, max_rows_per_run=0)
    target = TargetRecord(limits, 2, 2, 4, (0, 1), rules, True, True, facts)
    drafting = DrafterLimits(100, 8, GAMMA, 8, 4, 32, True)
    sizes = RunSizes(2, 4)
    write_record(folder.target, target)
    write_record(folder.drafter, DrafterRecord(drafting, 1, 2, 4, "vanilla", sizes, sizes, True, True, facts))
    return folder


def rebuilt_elsewhere(folder: EngineFolder) -> None:
    path = folder.target / "engine.json"
    values = json.loads(path.read_text())
    values["facts"] |= {"cpu": "another CPU", "tools": {"numpy": "0.1"}}
    path.write_text(json.dumps(values))


def measure(folder: EngineFolder, stable: bool = True) -> None:
    """A curve of made-up times."""
    sizes = [(r, k) for r in (1, 2, 4) for k in (1, 5)]
    CurveRecord(
        engine_fingerprint(folder), machine_fingerprint(0), "2026-01-01T00:00:00+00:00", stable,
        tuple(TargetPoint(r, float(k), 32.0, 9, 0.01 + 1e-3 * r * k, 1e-5) for r, k in sizes),
        tuple(DrafterPoint(r, 9, 1e-3 * r, 1e-5) for r in (1, 2, 4)),
    ).write(folder)


def calibrate(folder: EngineFolder, positions: int = GAMMA) -> None:
    (folder.drafter / "calibration.json").write_text(json.dumps({"positions": [{"temperature": 1.0}] * positions}))


def diagnosed(folder: EngineFolder, policy: str = "adaptive", ports: Ports | None = None) -> Diagnosis:
    return diagnose(ServingSettings(str(folder.root), policy), ports or free_ports(), "127.0.0.1")


def about(diagnosis: Diagnosis, name: str) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.about == name]


def levels(diagnosis: Diagnosis, name: str) -> list[Level]:
    return [finding.level for finding in about(diagnosis, name)]


def test_a_measured_and_calibrated_engine_is_all_well(engine: EngineFolder) -> None:
    measure(engine)
    calibrate(engine)
    diagnosis = diagnosed(engine)
    assert diagnosis.can_serve
    for name in ("model/int8", "model/int8 curve", "model/int8 calibration", "serve model/int8", "ports"):
        assert levels(diagnosis, name) == [Level.good], about(diagnosis, name)
    assert diagnosis.text().endswith("a server can start")


def test_without_a_curve_only_policies_that_need_none_can_start(engine: EngineFolder) -> None:
    assert diagnosed(engine, "fixed:3").can_serve
    refused = diagnosed(engine, "adaptive")
    assert not refused.can_serve
    (finding,) = about(refused, "serve model/int8")
    assert "run 'dspark profile'" in finding.do and finding.do in " ".join(refused.text().split())


def test_a_curve_of_unsettled_times_is_to_be_measured_again(engine: EngineFolder) -> None:
    measure(engine, stable=False)
    diagnosis = diagnosed(engine)
    assert diagnosis.can_serve and levels(diagnosis, "model/int8 curve") == [Level.advice]


def test_a_curve_of_another_build_does_not_count(engine: EngineFolder) -> None:
    measure(engine)
    rebuilt_elsewhere(engine)
    diagnosis = diagnosed(engine)
    assert not diagnosis.can_serve
    assert "another build" in about(diagnosis, "model/int8 curve")[0].do


def test_an_engine_of_another_machine_and_of_other_packages_is_to_be_built_again(engine: EngineFolder) -> None:
    rebuilt_elsewhere(engine)
    said = " ".join(finding.found for finding in about(diagnosed(engine), "model/int8"))
    assert "another CPU" in said and "numpy 0.1" in said


def test_a_calibration_that_does_not_fit_stops_a_server(engine: EngineFolder) -> None:
    calibrate(engine, positions=GAMMA - 1)
    diagnosis = diagnosed(engine, "full")
    assert not diagnosis.can_serve
    assert "run 'dspark calibrate' again" in about(diagnosis, "serve model/int8")[0].do


def test_no_calibration_is_only_advice(engine: EngineFolder) -> None:
    diagnosis = diagnosed(engine, "full")
    assert diagnosis.can_serve and levels(diagnosis, "model/int8 calibration") == [Level.advice]


def test_the_state_of_another_engine_stops_nothing(engine: EngineFolder) -> None:
    (engine.root.parent / "fp32").mkdir()
    diagnosis = diagnosed(engine, "full")
    assert diagnosis.can_serve and levels(diagnosis, "model/fp32") == [Level.advice]


def test_a_missing_engine_stops_and_names_the_command_that_builds_it(home: Path) -> None:
    diagnosis = diagnosed(EngineFolder(home / "engines" / "model" / "int8"))
    assert not diagnosis.can_serve
    assert "dspark build --engine int8" in about(diagnosis, "serve model/int8")[0].do


def test_a_taken_port_stops_and_is_named(engine: EngineFolder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = replace(free_ports(), grpc=taken.getsockname()[1])
        diagnosis = diagnosed(engine, "full", ports)
    assert not diagnosis.can_serve
    assert str(ports.grpc) in about(diagnosis, "ports")[0].do


def test_packages_that_a_server_needs_stop_where_they_are_missing() -> None:
    well = installed_versions()
    assert {finding.level for finding in version_findings(well)} <= {Level.good, Level.advice}
    for package in ("openvino", "tokenizers"):
        found = {finding.about: finding.level for finding in version_findings({**well, package: None})}
        assert found[package] is Level.stop


def test_a_library_that_only_pythonpath_names_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model processes are isolated: they start without PYTHONPATH, and fail to import it."""
    assert library_finding(sys.executable).level is Level.good
    bare = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "python_models"))
    found = library_finding(str(bare))
    assert found.level is Level.stop and ".pth" in found.do


def test_numpy_2_beside_the_wheels_triton_stops() -> None:
    found = {f.about: f for f in version_findings({**installed_versions(), "numpy": "2.1.0"})}
    assert found["numpy"].level is Level.stop


def test_another_version_than_the_tested_one_is_advice() -> None:
    found = {f.about: f for f in version_findings({**installed_versions(), "openvino": "2020.1"})}
    assert found["openvino"].level is Level.advice


def test_a_container_has_no_more_memory_than_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    (tmp_path / "cpuinfo").write_text("model name : X\nflags : fpu avx2 amx_int8\n")
    whole = read_machine(proc=tmp_path, cgroup=tmp_path)
    assert (whole.memory_gib, whole.available_gib) == (32.0, 16.0)
    assert whole.instruction_sets == ("AVX2", "AMX int8")
    (tmp_path / "memory.max").write_text(str(4 * GIB))
    (tmp_path / "memory.current").write_text(str(1 * GIB))
    limited = read_machine(proc=tmp_path, cgroup=tmp_path)
    assert (limited.memory_gib, limited.available_gib) == (4.0, 3.0)


def test_gpus_are_read_as_the_driver_prints_them() -> None:
    (gpu,) = parse_gpus("NVIDIA L4, 550.54.15, 23034, 22500, 8.9\n")
    machine = Machine("X", 2, ("AVX2",), 32.0, 16.0, (gpu,), "")
    said = " ".join(finding.found for finding in machine_findings(machine))
    assert "NVIDIA L4, driver 550.54.15, compute capability 8.9, 22.0 of 22.5 GiB free" in said
    with pytest.raises(ValueError, match="No devices"):
        parse_gpus("No devices were found\n")


@pytest.mark.parametrize(("policy", "status"), [("full", 0), ("adaptive", 1)])
def test_the_status_says_whether_a_server_can_start_and_json_says_why(
    policy: str, status: int, engine: EngineFolder, tmp_path: Path
) -> None:
    ports = free_ports()
    result = CliRunner().invoke(app, [
        "doctor", "--checkpoint", "model", "--policy", policy, "--json", str(tmp_path / "doctor.json"),
        "--http-port", str(ports.http), "--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics),
    ])
    assert result.exit_code == status
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["can_serve"] is (status == 0)
    assert ("stop" in {finding["level"] for finding in written["findings"]}) is (status == 1)
