"""docker-compose.yml and the Dockerfiles as the tests look at them: interpolated, merged, and with commands to run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dspark_client.paths import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"
DOCKERFILES = sorted((REPOSITORY / "build" / "docker").glob("*.Dockerfile"))
VARIABLE = re.compile(r"\$(?:\$|\{(\w+):-([^}]*)\})")
RECORDER = """#!/bin/sh
exec python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]), file=open("{calls}", "a"))' "$@"
"""


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, its continuation lines joined."""

    name: str
    arguments: str


def services(variables: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """The services by name, `${NAME:-default}` replaced from `variables` alone, `$$` by `$`."""
    given = variables or {}

    def value(found: re.Match[str]) -> str:
        return (given.get(found[1]) or found[2]) if found[1] else "$"

    document = yaml.safe_load(VARIABLE.sub(value, COMPOSE.read_text("utf-8")))
    return dict(document["services"])


def instructions(dockerfile: Path) -> list[Instruction]:
    """The instructions in their order, without comments."""
    lines = [line for line in dockerfile.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in joined]


def default_command(dockerfile: Path) -> tuple[list[str], list[str]]:
    """The last ENTRYPOINT and CMD."""
    last = {found.name: found.arguments for found in instructions(dockerfile) if found.name in ("ENTRYPOINT", "CMD")}
    return json.loads(last["ENTRYPOINT"]), json.loads(last.get("CMD", "[]"))


def image_environment(dockerfile: Path) -> dict[str, str]:
    """The variables that ENV sets."""
    found = [part for step in instructions(dockerfile) if step.name == "ENV" for part in step.arguments.split()]
    return dict(part.split("=", 1) for part in found)


def program(service: Mapping[str, Any]) -> list[str]:
    """What a service of ours runs: entrypoint and command, its own or those of its image."""
    entrypoint, command = default_command(REPOSITORY / service["build"]["dockerfile"])
    if "entrypoint" in service:
        entrypoint, command = service["entrypoint"], []
    return [*entrypoint, *service.get("command", command)]


def environment(service: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a service sets."""
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def calls(arguments: list[str], variables: Mapping[str, str], stand_in: str, folder: Path) -> list[list[str]]:
    """The arguments of every call of `stand_in` that a command line makes, which is a shell's or the call itself."""
    written = folder / "calls"
    recorder = folder / stand_in
    recorder.write_text(RECORDER.format(calls=written))
    recorder.chmod(0o755)
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    subprocess.run(arguments, env={**os.environ, **variables, "PATH": path}, check=True, timeout=60)
    return [json.loads(line) for line in written.read_text().splitlines()]
