"""The Dockerfiles: linted, copying what exists, and installing what is pinned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from composition import DOCKERFILES, image_environment, instructions
from dspark_client.paths import REPOSITORY

IGNORED = [line for line in (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines() if line]

dockerfiles = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)


def copied(dockerfile: Path) -> list[str]:
    """The sources of every COPY from the build context."""
    steps = [step.arguments.split() for step in instructions(dockerfile) if step.name == "COPY"]
    return [part for parts in steps for part in parts[:-1] if not part.startswith("--")]


def hidden(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build context; rather too often than too seldom."""
    place = PurePosixPath(path)
    return any(parent.match(pattern) for parent in (place, *place.parents) for pattern in IGNORED if parent.name)


@dockerfiles
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    linter = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([linter, "--no-color", dockerfile], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stdout == ""


@dockerfiles
def test_what_is_copied_exists_and_is_not_hidden(dockerfile: Path) -> None:
    sources = copied(dockerfile)
    assert sources
    assert [source for source in sources if not (REPOSITORY / source).exists() or hidden(source)] == []


def test_what_dockerignore_names_is_recognised_as_hidden() -> None:
    assert all(map(hidden, (".venv/bin/python", ".dspark/engines", "client/dspark_client/__pycache__/cli.pyc")))


@dockerfiles
def test_the_image_ends_as_a_user_without_rights(dockerfile: Path) -> None:
    users = [step.arguments for step in instructions(dockerfile) if step.name == "USER"]
    assert users[-1] == "1000:1000"


@dockerfiles
def test_the_image_finds_the_mounted_checkout_without_pythonpath(dockerfile: Path) -> None:
    listed = (REPOSITORY / "build" / "docker" / "dspark.pth").read_text("utf-8").split()
    folders = [Path(folder).relative_to("/dspark") for folder in listed]
    assert len(folders) == 3 and all(any((REPOSITORY / folder).glob("dspark*/__init__.py")) for folder in folders)
    (place,) = (step.arguments.split()[1] for step in instructions(dockerfile) if "dspark.pth" in step.arguments)
    assert re.fullmatch(r"/(usr/local|opt/dspark)/lib/python3\.1[12]/site-packages/", place)
    assert "PYTHONPATH" not in image_environment(dockerfile)        # model processes would ignore it


@dockerfiles
def test_the_image_writes_nothing_into_the_checkout(dockerfile: Path) -> None:
    environment = image_environment(dockerfile)
    assert environment["DSPARK_HOME"] == "/engines" and environment["PYTHONDONTWRITEBYTECODE"] == "1"


@dockerfiles
def test_requirements_that_an_image_installs_are_pinned(dockerfile: Path) -> None:
    for file in re.findall(r"-r /tmp/(requirements/\S+\.txt)", dockerfile.read_text("utf-8")):
        lines = [line.split("#")[0].strip() for line in (REPOSITORY / file).read_text("utf-8").splitlines()]
        assert [line for line in lines if line and "==" not in line] == []


def test_the_command_of_the_images_is_executable() -> None:
    assert (REPOSITORY / "build" / "docker" / "dspark").stat().st_mode & 0o111 == 0o111
