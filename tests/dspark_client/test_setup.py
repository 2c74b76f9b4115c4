"""`make setup`: done once, done again when the requirements change, made anew when it was interrupted.

With a stand-in for Python that only writes down what it is asked to do: the real thing downloads half a gigabyte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from dspark_client.paths import REPOSITORY

STAND_IN = """#!/bin/bash
echo "$*" >> "$PROJECT/calls"
case "$*" in
    *version_info*) echo "${FAKE_VERSION:-3.11}" ;;
    *get_path*) echo "$PROJECT/site" ;;
    --version) echo "Python 3.11.0" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo binary > "$3/bin/perf_analyzer" ;;
    *"install -r"*) [ -z "${FAKE_FAILURE:-}" ] ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with the set-up script, some requirements and the stand-in."""
    (tmp_path / "build").mkdir()
    shutil.copy(REPOSITORY / "build" / "setup.sh", tmp_path / "build" / "setup.sh")
    (tmp_path / "pyproject.toml").write_text('requires = ["builder==1"]\n')
    (tmp_path / "requirements").mkdir()
    for name in ("serve", "build", "dev", "triton"):
        (tmp_path / "requirements" / f"{name}.txt").write_text("package==1\n")
    libraries = tmp_path / "site" / "nvidia_pytriton.libs"
    libraries.mkdir(parents=True)
    for name in ("libcudart-1.so.12.6", "libb64-1.so.0d"):
        (libraries / name).touch()
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return tmp_path


def setup(project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = {"PYTHON": str(project / "python"), "PROJECT": str(project), "VENV": ".venv"}
    environment = {**os.environ, **ours, **variables}
    return subprocess.run([project / "build" / "setup.sh"], capture_output=True, text=True, env=environment, timeout=60)


def installs(project: Path) -> int:
    return (project / "calls").read_text().count("install -r requirements/serve.txt")


def environments(project: Path) -> int:
    return (project / "calls").read_text().count("-m venv")


def test_the_second_run_has_nothing_to_do(project: Path) -> None:
    first, second = setup(project), setup(project)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "MB" in first.stdout and second.stdout == ""
    assert installs(project) == 1


@pytest.mark.parametrize("changed", ["requirements/serve.txt", "requirements/triton.txt", "pyproject.toml"])
def test_changed_requirements_are_installed_into_the_same_environment(project: Path, changed: str) -> None:
    setup(project)
    with (project / changed).open("a") as file:
        file.write("# changed\n")
    assert setup(project).returncode == 0
    assert (installs(project), environments(project)) == (2, 1)


def test_an_interrupted_run_is_started_afresh(project: Path) -> None:
    assert setup(project, FAKE_FAILURE="1").returncode != 0
    left_over = project / ".venv" / "left-over"
    left_over.touch()
    assert setup(project).returncode == 0
    assert not left_over.exists()
    assert (installs(project), environments(project)) == (2, 2)


def test_an_environment_whose_python_is_gone_is_made_anew(project: Path) -> None:
    setup(project)
    (project / ".venv" / "bin" / "python").unlink()
    assert setup(project).returncode == 0
    assert environments(project) == 2


def test_perf_analyzer_gets_its_libraries_and_is_wrapped_once(project: Path) -> None:
    setup(project)
    with (project / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    setup(project)
    own = project / ".venv" / "lib" / "perf_analyzer"
    assert (own / "perf_analyzer").read_text() == "binary\n"
    assert (own / "libcudart.so.12").exists() and (own / "libb64.so.0d").exists()
    assert (project / ".venv" / "bin" / "perf_analyzer").read_text().startswith("#!/bin/sh")


def test_a_python_that_is_too_old_is_refused(project: Path) -> None:
    result = setup(project, FAKE_VERSION="3.9")
    assert result.returncode == 2
    assert "3.10 to 3.13" in result.stderr
