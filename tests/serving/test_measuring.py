"""evaluate and bench from end to end, each on a server of its own over a tiny random model."""

from __future__ import annotations

from pathlib import Path

import pytest
from dspark.settings import ServingSettings
from dspark_client.bench import CONCURRENCIES, run_bench
from dspark_client.evaluate import evaluate_acceptance, evaluate_lossless
from dspark_client.prompts import Prompt

pytestmark = pytest.mark.serving
PROMPTS = [Prompt(text, "chat", (text,), "set") for text in ("Hello", "How are you?", "Why?")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))


def test_bench_compares_the_same_tokens_and_fills_every_point(tiny_settings: ServingSettings) -> None:
    report = run_bench(tiny_settings, PROMPTS, max_tokens=12, repeats=1)
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


def test_acceptance_counts_what_the_server_verified(tiny_settings: ServingSettings) -> None:
    report = evaluate_acceptance(tiny_settings, PROMPTS, 24, 0.0, [3])
    (found,) = report.datasets.values()
    assert found.tokens == len(PROMPTS) + round(found.rounds * found.tau)
    assert report.engine == "engine" and report.drafter.startswith("vanilla:")
