"""docker-compose.yml is valid, calls commands that exist, and starts what the README says (without a Docker engine)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from composition import COMPOSE, DOCKERFILES, VARIABLE, calls, default_command, environment, program, services
from dspark_client.cli import app, spread
from dspark_client.paths import REPOSITORY

OURS = ("build", "server", "build-cpu", "server-cpu")
PINNED = re.compile(r".+:v?\d+[\w.-]*$")


def parse(arguments: list[str]) -> None:
    """Let the CLI parse arguments without running them. Raises an error of click's where it refuses them."""
    group = typer.main.get_command(app)
    context = group.make_context("dspark", spread(arguments))
    name, verb, rest = group.resolve_command(context, spread(arguments))
    assert verb is not None
    verb.make_context(name, rest, parent=context)


@pytest.fixture(scope="module")
def all_services() -> dict[str, dict[str, Any]]:
    return services()


def test_the_file_is_valid_by_the_compose_specification() -> None:
    checker = Path(sys.executable).parent / "check-jsonschema"
    command = [checker, "--builtin-schema", "vendor.compose-spec", COMPOSE]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout


def test_every_variable_has_a_default() -> None:
    text = VARIABLE.sub("", COMPOSE.read_text("utf-8"))
    code = [line.split(" #")[0] for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in code if "$" in line]


def test_a_bare_up_takes_the_gpu_profile_and_names_its_services(all_services: dict[str, dict[str, Any]]) -> None:
    assert "COMPOSE_PROFILES=gpu" in (REPOSITORY / ".env").read_text("utf-8").splitlines()
    by_profile = {name: service["profiles"] for name, service in all_services.items()}
    assert by_profile == {
        "build": ["gpu"], "server": ["gpu"], "build-cpu": ["cpu"], "server-cpu": ["cpu"],
        "bench": ["bench"], "prometheus": ["monitor"], "grafana": ["monitor"],
    }


@pytest.mark.parametrize("name", ["server", "server-cpu"])
def test_a_server_waits_for_its_engines_and_is_probed_by_inference(
    name: str, all_services: dict[str, dict[str, Any]]
) -> None:
    service = all_services[name]
    assert service["depends_on"] == {name.replace("server", "build"): {"condition": "service_completed_successfully"}}
    health = service["healthcheck"]["test"]
    assert health == ["CMD", "dspark", "ask", "--probe"]
    parse(health[2:])


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_no_rights_and_a_limit(name: str, all_services: dict[str, dict[str, Any]]) -> None:
    service = all_services[name]
    assert service["user"] == "1000:1000" and service["read_only"] and service["cap_drop"] == ["ALL"]
    assert ".:/dspark:ro" in service["volumes"]
    assert service["deploy"]["resources"]["limits"]["memory"] == "16g"


def test_only_the_gpu_services_ask_for_a_gpu(all_services: dict[str, dict[str, Any]]) -> None:
    asking = {
        name for name, service in all_services.items()
        if service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    }
    assert asking == {"build", "server"}


def test_servers_listen_outside_of_the_container_on_the_loopback_alone(
    all_services: dict[str, dict[str, Any]]
) -> None:
    for name in ("server", "server-cpu"):
        assert "--host=0.0.0.0" in all_services[name]["command"]
    published = [port for service in all_services.values() for port in service.get("ports", [])]
    assert published and all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_one_that_the_cli_understands(
    name: str, all_services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    service = all_services[name]
    found = calls(program(service), environment(service), "dspark", tmp_path)
    verbs = ["prepare", "build", "profile"] if name.startswith("build") else ["serve"]
    assert [arguments[0] for arguments in found] == verbs
    for arguments in found:
        parse(arguments)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_every_default_command_of_an_image_is_one_that_the_cli_understands(dockerfile: Path) -> None:
    entrypoint, command = default_command(dockerfile)
    assert entrypoint == ["dspark"]
    parse(command)


def test_a_model_of_ones_own_reaches_every_command(tmp_path: Path) -> None:
    variables = {
        "DSPARK_MODELS": "/data", "DSPARK_MODEL": "qwen3-4b", "DSPARK_SOURCE": "/models/Qwen3-4B",
        "DSPARK_DRAFTER": "/models/a drafter",
    }
    named = services(variables)
    assert "/data:/models:ro" in named["build"]["volumes"]
    assert "--checkpoint=qwen3-4b" in named["server"]["command"]
    prepared, built, profiled = calls(program(named["build"]), environment(named["build"]), "dspark", tmp_path)
    assert prepared == ["prepare", "/models/Qwen3-4B"]
    assert built[-4:] == ["--checkpoint", "/models/Qwen3-4B", "--drafter", "/models/a drafter"]
    assert profiled[4:6] == ["--checkpoint", "qwen3-4b"]


def test_an_engine_that_cannot_be_built_stops_the_build(tmp_path: Path) -> None:
    service = services()["build-cpu"]
    (tmp_path / "dspark").write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/verbs\n[ "$1" != build ]\n')
    (tmp_path / "dspark").chmod(0o755)
    variables = {**environment(service), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run(program(service), env=variables, timeout=60).returncode == 1
    assert (tmp_path / "verbs").read_text().split() == ["prepare", "build"]


def test_the_load_generator_understands_the_options_of_the_benchmark(
    all_services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    bench = all_services["bench"]
    found = calls(bench["command"], {**environment(bench), "CONCURRENCY": "1 8"}, "perf_analyzer", tmp_path)
    assert [arguments[arguments.index("--concurrency-range") + 1] for arguments in found] == ["1", "8"]
    elsewhere = {"dspark:8001": "127.0.0.1:9"}
    here = [elsewhere.get(argument, argument.replace("/dspark/", f"{REPOSITORY}/")) for argument in found[0]]
    asked = [Path(sys.executable).parent / "perf_analyzer", *here]
    result = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert "failed to connect" in result.stderr and "Usage" not in result.stdout + result.stderr


def test_whatever_is_mounted_from_the_checkout_exists(all_services: dict[str, dict[str, Any]]) -> None:
    mounts = [mount.split(":")[0] for service in all_services.values() for mount in service["volumes"]]
    assert [mount for mount in mounts if mount.startswith(".") and not (REPOSITORY / mount).exists()] == []


def test_images_are_pinned_by_tag(all_services: dict[str, dict[str, Any]]) -> None:
    images = {service["image"] for service in all_services.values()}
    assert len(images) == 6 and all(PINNED.match(image) for image in images)


def test_the_version_table_of_the_readme_has_every_foreign_image(all_services: dict[str, dict[str, Any]]) -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    images = {service["image"] for service in all_services.values() if "build" not in service}
    bases = re.findall(r"^FROM (\S+:\S+)", "\n".join(path.read_text("utf-8") for path in DOCKERFILES), re.MULTILINE)
    assert len(bases) == 2
    assert [image for image in (*images, *bases) if f"`{image}`" not in readme] == []


def test_every_command_of_the_readme_is_one_that_the_cli_understands() -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    code = "\n".join(re.findall(r"^```\w*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"(?:^|['/]|exec server )(dspark [a-z]+[^'\n]*)", code, re.MULTILINE)
    found = [shlex.split(line, comments=True) for line in lines]
    assert len(found) > 6
    for arguments in found:
        parse(arguments[1:])
