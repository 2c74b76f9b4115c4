"""The `dspark` command as a person meets it: one line and status 2 for bad input, help with an example."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dspark_client.cli import app
from dspark_client.paths import REPOSITORY

SAMPLE = str(REPOSITORY / "client" / "prompts" / "sample.jsonl")
VERBS = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)


def dspark(*arguments: str, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DSPARK_HOME": str(home), "COLUMNS": "100"}
    command = [sys.executable, "-m", "dspark_client", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, timeout=120)


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal."""
    assert result.returncode == 2 and not result.stdout.strip()
    (line,) = result.stderr.splitlines()
    assert line.startswith("dspark: ")
    return line


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "domain": "chat", "turns": ["Hello"]}\n{"id": "b"}\n')
    return path


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that is taken, but where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(verb: str, tmp_path: Path) -> None:
    result = dspark(verb, "--help", home=tmp_path)
    assert result.returncode == 0
    assert f"Example: dspark {verb}" in result.stdout


def test_the_command_alone_shows_the_verbs(tmp_path: Path) -> None:
    result = dspark(home=tmp_path)
    assert result.returncode == 0
    assert all(verb in result.stdout for verb in VERBS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["juggle"], "juggle"),
        (["serve", "--nope"], "--nope"),
        (["serve", "--engine", "int4"], "int4"),
        (["ask", "hi", "--max-tokens", "0"], "--max-tokens"),
        (["ask", "hi", "--address", "nonsense"], "host:port"),
        (["evaluate", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["evaluate"], "--prompts"),
        (["evaluate", "--prompts", SAMPLE, "--blocks", "1,x"], "blocks '1,x'"),
        (["evaluate", "--prompts", SAMPLE, "--plot", "plot.txt"], "plot.txt"),
        (["evaluate", "--prompts", SAMPLE, "--lossless", "--temperature", "1"], "--temperature"),
        (["evaluate", "--prompts", SAMPLE, "--seed", str(2**64)], "--seed"),
        (["bench", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    assert said in complaint(dspark(*arguments, home=tmp_path))


def test_a_bad_prompts_file_is_named_with_the_line(prompts: Path, tmp_path: Path) -> None:
    assert "prompts.jsonl, line 2: domain" in complaint(dspark("evaluate", "--prompts", str(prompts), home=tmp_path))


def test_a_bad_line_is_left_out_on_request_and_said(prompts: Path, tmp_path: Path) -> None:
    result = dspark("evaluate", "--prompts", str(prompts), "--skip-bad-lines", home=tmp_path)
    skipped, missing = result.stderr.splitlines()
    assert skipped.startswith("skipped ") and "prompts.jsonl, line 2: domain" in skipped
    assert "run 'dspark build --engine int8' first" in missing and result.returncode == 2


def test_a_missing_engine_is_said_with_the_command_that_builds_it(silent_port: int, tmp_path: Path) -> None:
    for arguments in (["serve"], ["ask", "hi", "--address", f"127.0.0.1:{silent_port}"]):
        assert "run 'dspark build --engine int8' first" in complaint(dspark(*arguments, home=tmp_path))


def test_a_probe_of_nothing_fails(silent_port: int, tmp_path: Path) -> None:
    said = complaint(dspark("ask", "--probe", "--address", f"127.0.0.1:{silent_port}", home=tmp_path))
    assert "UNAVAILABLE" in said


def test_an_unreadable_checkpoint_is_refused(tmp_path: Path) -> None:
    assert "nothing-here" in complaint(dspark("prepare", "nothing-here", home=tmp_path))
