"""evaluate and bench from end to end, on the engines and on servers over a tiny random model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import GAMMA
from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError, InvalidRequestError
from dspark.settings import ServingSettings
from dspark_client.acceptance import measure_acceptance
from dspark_client.bench import Goals, Level, LoadSize
from dspark_client.bench.against_bare import CONCURRENCIES, run_against_bare
from dspark_client.bench.command import SweepOptions, sweep
from dspark_client.direct import direct_engines
from dspark_client.evaluate import evaluate_acceptance, evaluate_lossless
from dspark_client.load import Answer
from dspark_client.prompts import Prompt
from dspark_client.transport import Connection, Generation

pytestmark = pytest.mark.serving
PROMPTS = [
    Prompt(text, domain, (text,), "set")
    for text, domain in (("Hello", "chat"), ("How are you?", "chat"), ("1+1", "math"))
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))


def test_bench_compares_the_same_tokens_and_fills_every_point(tiny_settings: ServingSettings) -> None:
    report = run_against_bare(tiny_settings, PROMPTS, max_tokens=12, repeats=1)
    assert report.server_against_bare.same_tokens
    assert report.server_against_bare.ratio > 0
    assert [(point.policy, point.concurrency) for point in report.points] == [
        (policy, concurrency) for concurrency in CONCURRENCIES for policy in ("none", tiny_settings.policy)
    ]
    for point in report.points:
        assert point.tokens_per_second > 0 and point.ttft_ms.p50 > 0 and point.itl_ms.p50 > 0
        assert (point.verified_per_request == 0) == (point.policy == "none")
    alone, together = (next(p for p in report.points if p.concurrency == c) for c in (1, 8))
    assert together.sequences_per_round > alone.sequences_per_round >= 1
    assert set(report.speedups) == {"concurrency_8", "concurrency_16"}


def test_speculation_is_lossless_on_the_tiny_model_at_any_concurrency(tiny_settings: ServingSettings) -> None:
    report = evaluate_lossless(tiny_settings, PROMPTS, 24, [1, 3])
    assert report.tokens > 0 and report.mismatched_tokens == 0
    assert [run.speculation for run in report.runs] == [False, True, False, True] and report.runs[1].tau is not None


def test_the_server_and_the_engines_directly_give_the_same_report(tiny_settings: ServingSettings) -> None:
    sampled = Generation(max_tokens=24, temperature=1.0, seed=3)
    direct = evaluate_acceptance(tiny_settings, PROMPTS, sampled, 3, sweep=[1, GAMMA])
    served = evaluate_acceptance(tiny_settings, PROMPTS, sampled, 2, sweep=[1, GAMMA], through_server=True)
    assert direct == served
    found = direct.datasets["set"]
    assert found.tokens == len(PROMPTS) + round(found.rounds * found.tau)
    assert direct.engine == "engine" and direct.drafter.startswith("vanilla:")
    assert set(direct.domains) == {"chat", "math"}
    assert sum(domain.tokens for domain in direct.domains.values()) == found.tokens
    assert direct.block == GAMMA and direct.blocks[str(GAMMA)] == direct.tau != direct.blocks["1"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_server_and_the_engines_directly_agree_token_for_token_and_count_for_count(
    tiny_settings: ServingSettings, connection: Connection, temperature: float,
) -> None:
    settings = Generation(max_tokens=40, temperature=temperature, seed=11, ignore_eos=True)
    with direct_engines(tiny_settings) as engines:
        direct, served = (measure_acceptance(way, PROMPTS, settings, 3) for way in (engines, connection))
    assert [answer.token_ids for answer in direct] == [answer.token_ids for answer in served]
    assert [counts(answer) for answer in direct] == [counts(answer) for answer in served]
    assert sum(answer.statistics["accepted"] for answer in direct) > 0
    assert all(answer.statistics["verified"] > 0 for answer in direct)


def test_a_block_limit_is_that_of_the_fixed_policy(tiny_settings: ServingSettings) -> None:
    settings = Generation(max_tokens=24, temperature=1.0, seed=1)
    limited = evaluate_acceptance(tiny_settings, PROMPTS, replace(settings, max_draft_tokens=2), 3)
    fixed = evaluate_acceptance(replace(tiny_settings, policy="fixed:2"), PROMPTS, settings, 3)
    assert limited.datasets == fixed.datasets
    assert limited.datasets["set"].acceptance_by_position[2:] == [None] * (GAMMA - 2)


def test_more_drafts_than_a_block_has_are_refused(tiny_settings: ServingSettings) -> None:
    with pytest.raises(ConfigurationError, match=f"choose from 1 to {GAMMA}, not 9"):
        evaluate_acceptance(tiny_settings, PROMPTS, Generation(max_tokens=4), 1, sweep=[1, 9])


def test_a_request_that_cannot_succeed_is_refused_as_the_server_does(tiny_settings: ServingSettings) -> None:
    with direct_engines(tiny_settings) as engines, pytest.raises(InvalidRequestError, match="max_tokens is 0"):
        list(engines.generate(Generation(text_input="a", max_tokens=0)))


def test_an_engine_without_its_drafter_is_refused(tiny_engine: EngineFolder, tmp_path: Path) -> None:
    shutil.copytree(tiny_engine.target, tmp_path / "half" / "target")
    with pytest.raises(ConfigurationError, match="drafter is missing"), direct_engines(
        ServingSettings(str(tmp_path / "half"))
    ):
        pass


def counts(answer: Answer) -> dict[str, object]:
    """An answer's statistics without its times."""
    return {name: value for name, value in answer.statistics.items() if not name.endswith("_ms")}


def test_a_sweep_compares_policies_on_one_server_and_goes_on_where_it_was(
    tiny_settings: ServingSettings, tmp_path: Path,
) -> None:
    asked = SweepOptions(
        policies=["none", "fixed:2"], levels=[Level(concurrency=1), Level(concurrency=4)], prompts=PROMPTS,
        generation=Generation(max_tokens=12, temperature=0.0, seed=0, ignore_eos=True), by_domain=False, repeats=1,
        size=LoadSize(per_stream=1, at_least=2), goals=Goals(ttft_ms=60_000), json_file=tmp_path / "bench.json",
    )
    report = sweep(asked, tiny_settings)
    points = {(point.policy, point.concurrency): point for point in report.points}
    assert len(points) == 4 and report.missing == 0
    assert [points[policy, 4].verified_per_request == 0 for policy in ("none", "fixed:2")] == [True, False]
    assert points["fixed:2", 1].verified_per_request <= 2.0 and points["none", 1].tau == 1.0
    assert all(point.goodput.share == 1.0 and point.sequences_per_round >= 1 for point in report.points)
    assert sweep(asked, replace(tiny_settings, engine_folder=str(tmp_path / "gone" / "engine"))) == report
    open_loop = replace(asked, levels=[Level(rate=4.0)], size=replace(asked.size, seconds=1.0), json_file=None)
    assert {point.rate for point in sweep(open_loop, tiny_settings).points} == {4.0}
