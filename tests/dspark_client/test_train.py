"""`dspark train`: the stages follow each other through DSPARK_HOME, and bad input is named."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.errors import ConfigurationError
from dspark_build.drafters import load_drafter_checkpoint
from dspark_build.tiny import make_tiny_target
from dspark_build.training.responses import Responses, write_responses
from dspark_client.cli import app
from typer.testing import CliRunner

LENGTHS = np.full(12, 30, np.int32)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))
    make_tiny_target(tmp_path / "checkpoints" / "tiny", layers=5)
    write_responses(
        tmp_path / "training" / "tiny" / "data" / "responses",
        0,
        Responses(
            tokens=np.random.default_rng(0).integers(3, 300, LENGTHS.sum()).astype(np.int32),
            lengths=LENGTHS,
            prompt_lengths=np.full(12, 6, np.int32),
            temperatures=np.zeros(12, np.float32),
            samples=np.zeros(12, np.int32),
            ids=np.array([f"chat/{i}" for i in range(12)]),
            domains=np.array(["chat"] * 12),
        ),
    )
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["train", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_cache_and_fit_leave_a_drafter_that_loads(home, tmp_path):
    output = run("cache", "--checkpoint", "tiny")
    assert "360 tokens to do" in output
    drafter = tmp_path / "drafter"
    fit = ("fit", "--checkpoint", "tiny", "--output", str(drafter), "--rank", "8", "--mask-token", "319")
    output = run(*fit, "--steps", "2", "--sequences", "2")
    assert '"learning_rate": 0.0006' in output and "step 2: finished" in output
    loaded = load_drafter_checkpoint(drafter, home / "checkpoints" / "tiny")
    assert loaded.config.model.layers == 2
    output = run(*fit, "--steps", "1", "--run", "second", "--start", str(drafter))
    assert "step 1: finished" in output


def test_missing_checkpoint_and_malformed_lists_are_named(home, tmp_path):
    with pytest.raises(ConfigurationError, match="dspark prepare nowhere"):
        run("cache", "--checkpoint", "nowhere")
    with pytest.raises(ConfigurationError, match="taps '1,x'"):
        run("cache", "--checkpoint", "tiny", "--taps", "1,x")
