"""A sweep on engines that compute nothing: what is asked of them, and what is kept of their answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import Clock, FakeEngines
from dspark.errors import ConfigurationError
from dspark_client.bench import (
    Bench,
    Goals,
    Level,
    LoadSize,
    Run,
    SweepFile,
    SweepSettings,
    measure,
    plan_runs,
    run_sweep,
)
from dspark_client.errors import RemoteError
from dspark_client.prompts import Prompt
from dspark_client.transport import Generation
from rich.progress import Progress

PROMPTS = [Prompt(f"set/{n}", "chat", (f"question {n}",), "set") for n in range(3)]
RUNS = plan_runs(["none", "full"], [Level(concurrency=1)], ["all"], 2, seed=0)
SETTINGS = SweepSettings("int8", "cpu", 3, "hash", 5, 0.0, False, 0, 2, 30.0, 2)


def bench(engines: FakeEngines, **changes: object) -> Bench:
    generation = Generation(max_tokens=5, temperature=0.0, seed=0)
    made = Bench(
        engines, PROMPTS, generation, LoadSize(per_stream=2, at_least=2), Goals(), clock=engines.clock,
        sleep=engines.clock.sleep,
    )
    return replace(made, **changes)


@pytest.fixture
def engines() -> FakeEngines:
    return FakeEngines(Clock())


@pytest.fixture
def progress() -> Progress:
    return Progress(disable=True)


def test_every_run_is_served_under_its_policy(engines: FakeEngines, progress: Progress) -> None:
    run_sweep(bench(engines), RUNS, SweepFile(None, SETTINGS), progress)
    assert engines.switches == [run.policy for run in RUNS]
    assert [policy for policy, _ in engines.served] == [run.policy for run in RUNS for _ in range(2)]
    assert all(generation.policy is None for _, generation in engines.served)


def test_figures_are_those_of_the_clock(engines: FakeEngines, progress: Progress) -> None:
    file = SweepFile(None, SETTINGS)
    run_sweep(bench(engines), RUNS, file, progress)
    none, full = sorted(file.save(RUNS).points, key=lambda point: point.tokens_per_second)
    assert (none.policy, none.tokens_per_second, none.tau, none.verified_per_request) == ("none", 2.0, 1.0, 0.0)
    assert none.ttft_ms.p50 == none.itl_ms.p50 == 500.0
    assert full.policy == "full" and full.tokens_per_second == round(5 / 1.5, 2) and full.tau == 2.0
    assert full.ratio_to_none == pytest.approx(5 / 3, abs=0.01) and full.repeats == 2
    assert (full.verified_per_request, full.drafted_per_request) == (3.0, 4.0)


def test_a_switch_is_tried_again_while_others_are_answered(progress: Progress) -> None:
    engines = FakeEngines(Clock(), busy=3)
    assert measure(bench(engines), RUNS[0] if RUNS[0].policy == "full" else RUNS[1], progress).run.policy == "full"
    assert engines.policy == "full" and engines.busy == 0


def test_a_server_that_never_changes_its_policy_is_given_up(progress: Progress) -> None:
    engines = FakeEngines(Clock(), busy=10**6)
    with pytest.raises(RemoteError, match="UNAVAILABLE"):
        measure(bench(engines), Run("full", 1, None, "all", 0), progress)


def test_the_file_holds_every_sample_as_soon_as_it_is_there(
    engines: FakeEngines, progress: Progress, tmp_path: Path,
) -> None:
    path = tmp_path / "bench.json"
    seen = []

    class Watching(FakeEngines):
        def generate(self, generation: Generation, timeout_s: float | None = None):
            seen.append(len(json.loads(path.read_text())["samples"]) if path.exists() else 0)
            return super().generate(generation, timeout_s)

    run_sweep(bench(Watching(engines.clock)), RUNS, SweepFile(path, SETTINGS), progress)
    assert seen == [done for done in range(len(RUNS)) for _ in range(3)]
    assert [each.name for each in tmp_path.iterdir()] == ["bench.json"]


def test_an_interrupted_sweep_goes_on_where_it_was(engines: FakeEngines, progress: Progress, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    run_sweep(bench(engines), RUNS[:3], SweepFile(path, SETTINGS), progress)
    again = SweepFile(path, SETTINGS)
    run_sweep(bench(engines), RUNS, again, progress)
    assert len(engines.switches) == len(RUNS)
    whole = SweepFile(None, SETTINGS)
    run_sweep(bench(FakeEngines(Clock())), RUNS, whole, progress)
    assert again.save(RUNS) == whole.save(RUNS)


def test_no_run_begins_after_the_time_is_up(engines: FakeEngines, progress: Progress) -> None:
    file = SweepFile(None, SETTINGS)
    run_sweep(bench(engines), RUNS, file, progress, max_seconds=6.0)
    report = file.save(RUNS)
    assert 0 < len(report.samples) < len(RUNS) and report.missing == len(RUNS) - len(report.samples)


def test_a_file_of_other_settings_is_refused_naming_them(
    engines: FakeEngines, progress: Progress, tmp_path: Path,
) -> None:
    path = tmp_path / "bench.json"
    run_sweep(bench(engines), RUNS[:1], SweepFile(path, SETTINGS), progress)
    with pytest.raises(ConfigurationError, match=r"max_tokens 5, this one has 9"):
        SweepFile(path, replace(SETTINGS, max_tokens=9))


@pytest.mark.parametrize("text", ["", "[]", '{"points": []}', '{"settings": {}, "samples": []}'])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "precious.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"precious\.json exists and is not a sweep"):
        SweepFile(path, SETTINGS)
    assert path.read_text() == text


def test_an_open_loop_counts_what_a_full_queue_refuses(progress: Progress) -> None:
    engines = FakeEngines(Clock(), refuse=frozenset({1}))
    size, goals = LoadSize(seconds=4.0, at_least=1), Goals(ttft_ms=1e9)
    found = measure(bench(engines, size=size, goals=goals), Run("none", None, 1.0, "all", 0), progress)
    assert (found.requests, found.refused) == (3, 1)
    assert found.goodput is not None and found.goodput.share == 0.75


def test_a_closed_loop_ends_with_the_first_failure(progress: Progress) -> None:
    engines = FakeEngines(Clock(), refuse=frozenset({1}))
    with pytest.raises(RemoteError, match="queue is full"):
        measure(bench(engines), Run("none", 1, None, "all", 0), progress)
