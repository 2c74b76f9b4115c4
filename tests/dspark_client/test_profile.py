"""`dspark profile` on a tiny engine, by a clock that only its steps move."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dspark.engines.contract import (
    DrafterEngine,
    DrafterLimits,
    DrafterResult,
    DrafterStep,
    EngineFolder,
    TargetEngine,
    TargetLimits,
    TargetResult,
    TargetStep,
)
from dspark.engines.loading import load_drafter, load_target
from dspark.engines.warm_up import blank_step
from dspark.errors import ConfigurationError
from dspark.scheduling.curve import ThroughputCurve
from dspark.scheduling.curve_record import CURVE_FILE
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.export.drafter import DrafterSizes, build_drafter
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.tiny import make_tiny_target
from dspark_client import cli, profile_report
from dspark_client.profile import ProfileReport, profile_engines
from dspark_client.profile_sizes import TargetSize, drafter_sizes, plan_slots, target_sizes
from dspark_client.profile_timing import LEAST, MOST

GAMMA, VOCABULARY, CONTEXT, SLOTS = 4, 320, 256, 8


def stairs(step: TargetStep) -> float:
    """Seconds of a target step: fixed, by token, by context."""
    return 0.01 + 0.001 * len(step.tokens) + 1e-5 * float(step.positions.sum())


def drafting(step: DrafterStep) -> float:
    return 0.004 + 0.001 * len(step.slots)


class Paced:
    """Engines whose steps do their work and then take what a formula says, on a clock of their own."""

    def __init__(self, target: TargetEngine, drafter: DrafterEngine) -> None:
        self.now = 100.0
        self.target_steps: list[TargetStep] = []
        self.drafter_steps: list[DrafterStep] = []
        self.target_seconds: Callable[[TargetStep], float] = stairs
        self.drafter_seconds: Callable[[DrafterStep], float] = drafting
        paced = self

        class Target:
            limits = target.limits

            def step(self, step: TargetStep) -> TargetResult:
                paced.target_steps.append(step)
                result = target.step(step)
                paced.now += paced.target_seconds(step)
                return result

        class Drafter:
            limits = drafter.limits

            def step(self, step: DrafterStep) -> DrafterResult:
                paced.drafter_steps.append(step)
                result = drafter.step(step)
                paced.now += paced.drafter_seconds(step)
                return result

        self.target, self.drafter = Target(), Drafter()

    def profile(self, folder: EngineFolder, seconds: float = 1e6) -> ProfileReport:
        return profile_engines(
            folder, self.target, self.drafter, 0, self.now + seconds, clock=lambda: self.now
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> EngineFolder:
    root = tmp_path_factory.mktemp("profile")
    checkpoint = make_tiny_target(root / "checkpoint", vocabulary=VOCABULARY)
    drafter = save_drafter_checkpoint(
        initialise_drafter(
            checkpoint, target_layer_ids=[0, 1], start_layers=[1], block_size=GAMMA, mask_token_id=VOCABULARY - 1
        ),
        root / "drafter", checkpoint,
    )
    folder = EngineFolder(root / "home" / "engines" / "tiny" / "fp32")
    sizes = TargetSizes(max_context=CONTEXT, max_slots=SLOTS, kv_tokens=SLOTS * (CONTEXT + 64))
    build_target(checkpoint, drafter, "fp32", folder.target, sizes)
    build_drafter(drafter, checkpoint, "fp32", folder.drafter, DrafterSizes(max_slots=SLOTS, window=32))
    return folder


@pytest.fixture(scope="module")
def loaded(built: EngineFolder) -> tuple[TargetEngine, DrafterEngine]:
    return load_target(built.target, threads=1), load_drafter(built.drafter)


@pytest.fixture
def folder(built: EngineFolder) -> Iterator[EngineFolder]:
    yield built
    (built.root / CURVE_FILE).unlink(missing_ok=True)


@pytest.fixture
def paced(loaded: tuple[TargetEngine, DrafterEngine]) -> Paced:
    return paced_engines(*loaded)


@pytest.fixture(scope="module")
def measured(built: EngineFolder, loaded: tuple[TargetEngine, DrafterEngine]) -> tuple[Paced, ProfileReport]:
    """A whole profile, and the engines that did it."""
    paced = paced_engines(*loaded)
    report = paced.profile(built)
    Path(report.file).unlink()
    return paced, report


def paced_engines(target: TargetEngine, drafter: DrafterEngine) -> Paced:
    """With all slots of the target free."""
    every = np.arange(SLOTS, dtype=np.int32)
    target.step(replace(blank_step(0, GAMMA + 1), released=every))
    return Paced(target, drafter)


def test_the_curve_that_serving_reads_says_what_the_steps_took(folder: EngineFolder, paced: Paced) -> None:
    report = paced.profile(folder)
    curve = ThroughputCurve.read(folder, GAMMA)
    assert report.file == str(folder.root / CURVE_FILE)
    assert (report.message, report.curve.stable, curve.stable) == ("", True, True)
    tokens = np.arange(4, 4 * (GAMMA + 1) + 1)
    np.testing.assert_allclose(curve.target_seconds(4, tokens, 64.0), 0.01 + 0.001 * tokens + 1e-5 * 4 * 64, rtol=1e-3)
    assert curve.drafter_seconds(3) == pytest.approx(0.007)


def test_what_context_costs_is_found(measured: tuple[Paced, ProfileReport]) -> None:
    curve = ThroughputCurve.of(measured[1].curve, GAMMA)
    assert curve.context_cost.per_sequence == pytest.approx(1e-5, rel=1e-3)
    assert curve.context_cost.per_token == pytest.approx(0.0, abs=1e-9)


def test_every_size_is_measured_once_more_than_it_counts_and_in_another_order_each_time(
    measured: tuple[Paced, ProfileReport]
) -> None:
    paced, report = measured
    assert {point.count for point in (*report.curve.target, *report.curve.drafter)} == {LEAST}
    timed = [(len(step.slots), len(step.tokens)) for step in paced.target_steps if step.samples.all()]
    points = len(report.curve.target)
    assert len(timed) == points * (1 + LEAST)
    passes = [timed[start : start + points] for start in range(points, len(timed), points)]
    assert {tuple(sorted(order)) for order in passes} == {tuple(sorted(timed[:points]))}
    assert len({tuple(order) for order in passes}) == LEAST


def test_steps_are_those_of_serving(measured: tuple[Paced, ProfileReport]) -> None:
    paced, _ = measured
    steps = [step for step in paced.target_steps if step.samples.all()]
    blocks = [step for step in steps if step.token_counts.max() <= GAMMA + 1]
    assert all((step.draft_counts == step.token_counts - 1).all() for step in blocks)
    assert all(step.draft_ids.shape == (step.draft_counts.sum(), paced.drafter.limits.candidates) for step in blocks)
    assert all(step.wants_features.all() and not step.sampling.temperature.any() for step in steps)
    prompts = [step for step in steps if step.token_counts.max() > GAMMA + 1]
    assert {len(step.slots) for step in prompts} == {1, 8}
    assert not any(step.draft_counts.any() for step in prompts)
    drafts = [step for step in paced.drafter_steps if step.drafts.all()]
    assert all((step.context_counts == 2).all() for step in drafts)


def test_a_drafter_that_drafts_in_pieces_is_measured_on_both_sides_of_their_edge() -> None:
    limits = _limits()
    sizes = drafter_sizes(_drafter_limits(), limits.max_slots, 8)
    assert [size.sequences for size in sizes] == [1, 2, 4, 8, 9, 16, 17, 24, 25, 32]


def test_a_target_that_runs_in_pieces_is_measured_on_both_sides_of_their_edge() -> None:
    limits = _limits()
    sizes = target_sizes(limits, 7, plan_slots(limits), 96)
    for sequences in (1, 8, 16, 32):
        assert {TargetSize(sequences, 96), TargetSize(sequences, 97)} <= set(sizes)
    lengths = {size.tokens // 4 for size in sizes if size.sequences == 4}
    assert lengths == {1, 2, 3, 4, 6, 8}


def test_a_small_pool_is_filled_with_less_context_or_fewer_sequences() -> None:
    limits = _limits()
    assert (plan_slots(limits).long_context, plan_slots(limits).long_slots) == (512, 8)
    tight = plan_slots(replace(limits, kv_blocks=160))
    assert (tight.short_slots, tight.long_slots) == (24, 8)
    assert 64 < tight.long_context < 512
    tiny = plan_slots(replace(limits, kv_blocks=40))
    assert tiny.short_slots + tiny.long_slots < 32


def test_a_size_whose_times_vary_is_measured_more_often_and_reported(folder: EngineFolder, paced: Paced) -> None:
    factors = itertools.cycle([1, 2, 3])
    paced.drafter_seconds = lambda step: drafting(step) * (next(factors) if len(step.slots) == 2 else 1)
    report = paced.profile(folder)
    assert {point.count for point in report.curve.target} == {LEAST}
    assert next(point.count for point in report.curve.drafter if point.sequences == 2) == MOST
    assert not report.curve.stable
    assert "1 of 36 sizes of step were measured too seldom" in report.message


@pytest.mark.parametrize(
    ("seconds", "complaint"), [(5.0, "36 of 36 sizes of step were measured too seldom"), (2.5, "there was no time for")]
)
def test_the_time_that_is_given_is_kept_and_what_is_missing_reported(
    folder: EngineFolder, paced: Paced, seconds: float, complaint: str
) -> None:
    started = paced.now
    report = paced.profile(folder, seconds)
    assert paced.now - started <= seconds + max(map(stairs, paced.target_steps))
    assert complaint in report.message
    assert not report.curve.stable
    assert not ThroughputCurve.read(folder, GAMMA).stable


def test_too_little_time_leaves_the_curve_that_was_there(folder: EngineFolder, paced: Paced) -> None:
    (folder.root / CURVE_FILE).write_text("earlier", "utf-8")
    with pytest.raises(ConfigurationError, match="give more --minutes"):
        paced.profile(folder, seconds=0.2)
    assert (folder.root / CURVE_FILE).read_text("utf-8") == "earlier"


def test_times_that_contradict_each_other_are_not_written(folder: EngineFolder, paced: Paced) -> None:
    paced.target_seconds = lambda step: 1.0 / len(step.tokens)
    with pytest.raises(ConfigurationError, match=r"flat|contradicts itself"):
        paced.profile(folder)
    assert not (folder.root / CURVE_FILE).exists()


def test_the_table_has_a_row_for_every_number_of_sequences(measured: tuple[Paced, ProfileReport]) -> None:
    lines = profile_report.table(measured[1]).splitlines()
    assert lines[1].split() == ["1", "2", "3", "4", "5", "draft"]
    rows = {cells[0]: cells[1:] for cells in map(str.split, lines[2:-1])}
    assert set(rows) == {"1", "2", "4", "8"}
    assert rows["2"] == ["13.3", "15.3", "17.3", "19.3", "21.3", "6.0"]


def test_the_verb_writes_curve_json_and_picture(
    folder: EngineFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(folder.root.parents[2]))
    result, picture = tmp_path / "profile.json", tmp_path / "curve.png"
    monkeypatch.setattr("dspark.scheduling.curve.check_shape", lambda record: None)      # a busy machine's times
    arguments = ["profile", "--checkpoint", "tiny", "--engine", "fp32", "--threads", "1", "--minutes", "0.5",
                 "--json", str(result), "--plot", str(picture)]
    cli.app(arguments, standalone_mode=False)
    written = json.loads((folder.root / CURVE_FILE).read_text("utf-8"))
    reported = json.loads(result.read_text("utf-8"))
    assert written == {"format": 1, **reported["curve"]}
    assert {math.copysign(1, point["median_s"]) for point in written["target"]} == {1.0}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "ms of a step" in capsys.readouterr().out
    before = (folder.root / CURVE_FILE).read_bytes()
    cli.app([*arguments, "--keep"], standalone_mode=False)
    assert "is measured already" in capsys.readouterr().out
    assert (folder.root / CURVE_FILE).read_bytes() == before


def test_an_engine_that_was_not_built_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no engine was built here"):
        cli.app(["profile"], standalone_mode=False)


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    folder: EngineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(folder.root.parents[2]))
    with pytest.raises(ConfigurationError, match="a name that ends in"):
        cli.app(["profile", "--checkpoint", "tiny", "--engine", "fp32", "--plot", "curve.xyz"], standalone_mode=False)
    assert not (folder.root / CURVE_FILE).exists()


def _limits() -> TargetLimits:
    return TargetLimits(
        vocabulary_size=49152, hidden_size=576, max_context=4096, max_slots=32, kv_block_size=32, kv_blocks=512,
        max_draft_tokens=7, spare_tokens=7,
    )


def _drafter_limits() -> DrafterLimits:
    return DrafterLimits(49152, 576, 7, 64, 32, 256, True)
