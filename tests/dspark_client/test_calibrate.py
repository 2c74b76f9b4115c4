"""`dspark calibrate` from prompts to calibration.json, on a tiny engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling import Calibration
from dspark.scheduling.calibration import CALIBRATION_FILE
from dspark.settings import ServingSettings
from dspark_build.checkpoints.form import copy_tokenizer
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.export.drafter import DrafterSizes, build_drafter
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.tiny import make_tiny_target
from dspark_client import cli
from dspark_client.acceptance import measure_acceptance
from dspark_client.calibrate import Calibrated, CalibrationOptions, calibrate, held_out, recording
from dspark_client.calibration_fit import PromptRounds, fit
from dspark_client.calibration_report import markdown, plot
from dspark_client.prompts import Prompt, first_turn
from dspark_client.rounds_recorder import Round, recorded_engines
from dspark_client.transport import Generation

GAMMA, VOCABULARY, CONTEXT, SLOTS = 4, 320, 256, 8
PROMPTS = [Prompt(f"set/{n}", ("chat", "math")[n % 2], (f"{n} " * (1 + n % 3),), "set") for n in range(12)]
OPTIONS = CalibrationOptions((0.0, 1.0), max_tokens=32, holdout=0.4, concurrency=3, seed=1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> EngineFolder:
    """A fp32 engine of a random model with an untrained drafter, where the `dspark` command looks for it."""
    root = tmp_path_factory.mktemp("home")
    checkpoint = make_tiny_target(root / "checkpoint", vocabulary=VOCABULARY)
    drafter = save_drafter_checkpoint(
        initialise_drafter(
            checkpoint, target_layer_ids=[0, 1], start_layers=[1], block_size=GAMMA, mask_token_id=VOCABULARY - 1
        ),
        root / "drafter", checkpoint,
    )
    folder = EngineFolder(root / "engines" / "tiny" / "fp32")
    build_target(checkpoint, drafter, "fp32", folder.target, TargetSizes(CONTEXT, SLOTS, SLOTS * (CONTEXT + 64)))
    build_drafter(drafter, checkpoint, "fp32", folder.drafter, DrafterSizes(max_slots=SLOTS, window=32))
    copy_tokenizer(checkpoint, folder.tokenizer)
    return folder


@pytest.fixture
def engine(built: EngineFolder) -> EngineFolder:
    """The same, without a calibration."""
    (built.drafter / CALIBRATION_FILE).unlink(missing_ok=True)
    return built


@pytest.fixture
def settings(engine: EngineFolder) -> ServingSettings:
    return ServingSettings(str(engine.root), policy="full", max_slots=2, threads=1)


@pytest.fixture(scope="module")
def calibrated(built: EngineFolder) -> Calibrated:
    return calibrate(ServingSettings(str(built.root), policy="full", max_slots=2, threads=1), PROMPTS, OPTIONS)


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": p.id, "domain": p.domain, "turns": p.turns}) for p in PROMPTS]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def command(home: EngineFolder, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The status that `dspark calibrate …` ends with."""
    monkeypatch.setenv("DSPARK_HOME", str(home.root.parents[2]))
    monkeypatch.setattr("sys.argv", ["dspark", "calibrate", "--engine", "fp32", "--checkpoint", "tiny", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_the_recorded_rounds_are_those_of_the_answers_statistics(settings: ServingSettings) -> None:
    asked = Generation(max_tokens=24, temperature=1.0, seed=3)
    with recorded_engines(settings) as engines:
        answers = measure_acceptance(engines.engines, PROMPTS, asked, 3)
        recorded = {tuple(answer.prompt): answer.rounds for answer in engines.recorder.take()}
        prompts = [engines.prompt_tokens(asked.with_messages(first_turn(prompt))) for prompt in PROMPTS]
    assert sum(len(rounds) for rounds in recorded.values()) > 100
    for prompt, answer in zip(prompts, answers, strict=True):
        rounds = recorded[prompt]
        assert [found.number for found in rounds] == list(range(len(rounds)))
        assert len(rounds) == answer.statistics["verified_by_position"][0]
        assert sum(found.accepted > 0 for found in rounds) == answer.statistics["accepted_by_position"][0]


def test_the_command_leaves_a_calibration_that_the_server_reads(
    engine: EngineFolder, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {name: tmp_path / name for name in ("out.json", "table.md", "reliability.png", "rounds.jsonl")}
    assert command(
        engine, monkeypatch, "--prompts", str(prompts_file), "--max-tokens", "32", "--holdout", "0.4", "--concurrency",
        "3", "--json", str(files["out.json"]), "--markdown", str(files["table.md"]), "--plot",
        str(files["reliability.png"]), "--record", str(files["rounds.jsonl"]),
    ) == 0
    written = json.loads((engine.drafter / CALIBRATION_FILE).read_text("utf-8"))
    assert written == json.loads(files["out.json"].read_text("utf-8"))
    assert written["temperatures"] == [0.0, 1.0]
    assert set(written["positions"][0]["ece_after_by_temperature"]) == {"0", "1"}
    assert (written["data"]["held_out_prompts"], written["data"]["fit_prompts"]) == (5, 7)
    calibration = Calibration.read(engine.drafter, GAMMA)
    assert calibration is not None
    assert calibration.temperatures.tolist() == [position["temperature"] for position in written["positions"]]
    assert files["table.md"].read_text("utf-8").count("\n| ") == GAMMA + 2
    assert files["reliability.png"].read_bytes().startswith(b"\x89PNG")
    rounds = [json.loads(line) for line in files["rounds.jsonl"].read_text("utf-8").splitlines()]
    assert len({(found["prompt"], found["temperature"], found["round"]) for found in rounds}) == len(rounds)
    assert {found["prompt"] for found in rounds} <= {prompt.id for prompt in PROMPTS}
    assert {(found["domain"], found["temperature"]) for found in rounds} == {
        (domain, temperature) for domain in ("chat", "math") for temperature in (0, 1)
    }
    assert len(rounds) == written["data"]["fit_rounds"] + written["data"]["held_out_rounds"]
    assert all(len(found["logits"]) == GAMMA and found["accepted"] <= found["verified"] <= GAMMA for found in rounds)


def test_the_same_seed_gives_the_same_rounds_whatever_runs_beside(
    settings: ServingSettings, calibrated: Calibrated,
) -> None:
    again = calibrate(settings, PROMPTS, replace(OPTIONS, concurrency=1))
    assert again.record.positions == calibrated.record.positions
    assert recording(again.answers) == recording(calibrated.answers)


def test_too_few_prompts_or_rounds_are_refused_and_nothing_is_written(
    engine: EngineFolder, prompts_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(engine, monkeypatch, "--prompts", str(prompts_file), "--limit", "1") == cli.BAD_INPUT
    assert "at least 2 are needed" in capsys.readouterr().err
    assert command(engine, monkeypatch, "--prompts", str(prompts_file), "--max-tokens", "4") == cli.BAD_INPUT
    assert "too few, at least 100 of each are needed" in capsys.readouterr().err
    assert not (engine.drafter / CALIBRATION_FILE).exists()


@pytest.mark.parametrize("temperatures", ["", "warm", "-1", "inf"])
def test_temperatures_that_are_none_are_refused(
    engine: EngineFolder, prompts_file: Path, temperatures: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--prompts", str(prompts_file), f"--temperatures={temperatures}")
    assert command(engine, monkeypatch, *arguments) == cli.BAD_INPUT
    assert "numbers from 0 up are expected" in capsys.readouterr().err


def test_a_calibration_of_another_drafter_is_refused_until_it_is_made_again(
    settings: ServingSettings, calibrated: Calibrated,
) -> None:
    drafter = EngineFolder(Path(settings.engine_folder)).drafter
    replace(calibrated.record, drafter="another").write(drafter)
    with pytest.raises(ConfigurationError, match="another drafter"):
        Calibration.read(drafter, GAMMA)
    calibrate(settings, PROMPTS, OPTIONS).record.write(drafter)
    assert Calibration.read(drafter, GAMMA) is not None


def made_up(prompt: Prompt, count: int, logit: float, acceptance: float, verified: int, seed: int) -> PromptRounds:
    """Rounds in which every draft is accepted with the same chance."""
    random = np.random.default_rng(seed)
    drawn = np.logical_and.accumulate(random.random((count, 2)) < acceptance, axis=1).sum(axis=1)
    logits = np.full(2, logit, np.float32)
    return PromptRounds(
        prompt, 0.0, [Round(n, logits, verified, min(int(one), verified)) for n, one in enumerate(drawn)]
    )


def test_drafts_that_the_end_of_an_answer_cut_off_do_not_count_as_rejected() -> None:
    # logit 2 promises 0.88, 0.62 are accepted: sigmoid(2 / 4) is 0.62
    whole, cut = (
        [made_up(prompt, 4000, 2.0, 0.62, verified, seed) for seed, prompt in enumerate(PROMPTS[:2])]
        for verified in (2, 1)
    )
    found = fit([whole[0], cut[0]], [whole[1], cut[1]], 2)
    assert [position.count for position in found.positions] == [8000, 4000]
    assert [position.temperature for position in found.positions] == pytest.approx([4, 4], rel=0.3)
    assert all(position.ece_after < 0.03 < position.ece_before for position in found.positions)


def test_where_no_draft_was_verified_there_are_no_figures(tmp_path: Path) -> None:
    cut = [made_up(prompt, 200, 0.0, 0.5, 1, seed) for seed, prompt in enumerate(PROMPTS[:2])]
    found = fit(cut[:1], cut[1:], 2)
    unseen = found.positions[1]
    assert (unseen.temperature, unseen.count) == (1, 0)
    assert unseen.ece_before is unseen.ece_after is unseen.auc is None
    plot(found, tmp_path / "reliability.png")


def test_the_held_out_prompts_are_of_every_domain_and_never_all() -> None:
    judging = held_out(PROMPTS, 0.5, seed=0)
    assert sorted(prompt.domain for prompt in judging) == ["chat"] * 3 + ["math"] * 3
    assert judging != held_out(PROMPTS, 0.5, seed=1)
    assert len(held_out(PROMPTS, 0.99, seed=0)) == 11 and len(held_out(PROMPTS, 0.01, seed=0)) == 1
    with pytest.raises(ConfigurationError, match="at least 2"):
        held_out([PROMPTS[0], PROMPTS[0]], 0.5, seed=0)


def test_every_row_of_the_table_has_as_many_cells_as_its_header(calibrated: Calibrated) -> None:
    table = markdown(calibrated.record).split("\n\n")[1]
    assert len({line.count("|") for line in table.strip().splitlines()}) == 1
