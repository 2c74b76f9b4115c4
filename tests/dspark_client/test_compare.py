"""`dspark train fit --head eagle3` and `dspark train compare`: from recorded responses to tables and pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dspark.errors import ConfigurationError
from dspark_build.drafters import load_eagle_checkpoint
from dspark_build.tiny import make_tiny_target
from dspark_build.training.responses import Responses, write_responses
from dspark_client.cli import app
from typer.testing import CliRunner

LENGTHS = np.full(12, 30, np.int32)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("home")
    make_tiny_target(root / "checkpoints" / "tiny", layers=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPARK_HOME", str(root))
        write_responses(
            root / "training" / "tiny" / "data" / "responses",
            0,
            Responses(
                tokens=np.random.default_rng(0).integers(3, 300, LENGTHS.sum()).astype(np.int32),
                lengths=LENGTHS,
                prompt_lengths=np.full(12, 6, np.int32),
                temperatures=np.array([0, 1] * 6, np.float32),
                samples=np.zeros(12, np.int32),
                ids=np.array([f"{('gsm8k', 'mbpp')[i // 6]}/{i}" for i in range(12)]),
                domains=np.array(["math"] * 6 + ["code"] * 6),
            ),
        )
        run("cache", "--checkpoint", "tiny")
        yield root


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["train", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def compare(home, *arguments: str) -> str:
    data = home / "training" / "tiny" / "data"
    return run("compare", "--checkpoint", "tiny", "--responses", str(data / "responses"), "--states",
               str(data / "states"), *arguments)  # fmt: skip


def test_trained_heads_and_lookup_are_compared_in_json_tables_and_pictures(home, tmp_path):
    for head in ("eagle3", "none"):
        run("fit", "--checkpoint", "tiny", "--output", str(home / head), "--run", head, "--head", head, "--steps", "1",
            "--sequences", "2", "--mask-token", "319", "--block", "3")  # fmt: skip
    assert load_eagle_checkpoint(home / "eagle3", home / "checkpoints" / "tiny").config.block_size == 3
    output = compare(
        home, "--drafter", f"none={home / 'none'}", "--drafter", f"eagle3={home / 'eagle3'}", "--lookup",
        "--ratio", "none/eagle3", "--json", str(tmp_path / "t.json"), "--markdown", str(tmp_path / "t.md"),
        "--plot", str(tmp_path / "t.png"),
    )  # fmt: skip
    text = (tmp_path / "t.md").read_text()
    assert text in output and "| none / eagle3 |" in text and "| drafter | block | gsm8k | mbpp | mean |" in text
    found = json.loads((tmp_path / "t.json").read_text())
    assert [each["temperature"] for each in found["temperatures"]] == [0, 1]
    assert found["temperatures"][0]["prompts"] == {"gsm8k": 3, "mbpp": 3}
    assert list(found["temperatures"][1]["drafters"]) == [
        "none", "eagle3", "prompt lookup", "lookup, then none", "lookup, then eagle3"
    ]
    for name in ("t-positions.png", "t-sweep.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--drafter", "nameless"], "NAME=FOLDER"), (["--drafter", "a=x", "--drafter", "a=y"], "same name"),
     (["--lookup", "--ratio", "lookup"], "NAME/NAME"), ([], "at least one drafter"),
     (["--lookup", "--plot", "figure.xyz"], "figure.xyz")],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_before_it_begins(home, arguments, named):
    with pytest.raises(ConfigurationError, match=named):
        compare(home, *arguments)
