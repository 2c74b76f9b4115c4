"""The default deployment: the real model on its int8 engine, as `make serve` builds it (`make engine`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from dspark_client import paths

pytestmark = [pytest.mark.serving, pytest.mark.model]
ENGINE = paths.engine_folder(paths.DEFAULT_CHECKPOINT, "int8").root

if not ENGINE.is_dir():
    pytest.skip("the int8 engine of the default model is not built: make engine", allow_module_level=True)


def dspark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dspark_client", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=600)


def test_ask_starts_a_server_where_none_runs_and_the_capital_of_france_is_paris() -> None:
    with socket.socket() as held:                     # bound, not listening: nothing runs at this address
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        result = dspark("ask", "What is the capital of France?", "--address", address)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout


def test_speculation_changes_no_token(tmp_path: Path) -> None:
    prompts = paths.REPOSITORY / "client" / "prompts" / "sample.jsonl"
    result = dspark(
        "evaluate", "--lossless", "--engine", "int8", "--prompts", str(prompts),
        "--limit", "6", "--max-tokens", "32", "--concurrency", "1,6", "--json", str(tmp_path / "report.json"),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert (result.returncode, report["mismatched_tokens"]) == (0, 0), report
    assert report["prompts"] == 6 and report["tokens"] > 300
