"""A server that schedules by load: with a curve of made-up times over the tiny engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import metrics, model_repository
from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling.curve_record import (
    CurveRecord,
    DrafterPoint,
    TargetPoint,
    engine_fingerprint,
    machine_fingerprint,
)
from dspark.settings import ServingSettings
from dspark_client.deployment import check_deployment
from dspark_client.errors import RemoteError
from dspark_client.server import SupervisedServer, running_server
from dspark_client.transport import Connection, Generation
from test_sampled_frequencies import LEVEL, SEEDS, p_value, tokens_at

pytestmark = pytest.mark.serving

COUNT, SPREAD_S = 20, 1e-5
PROMPTS = ["ab", "abcabcabcabcabc", "x" * 30, "once upon a time", "zyzyzyzyzyzy", "0 1 2 3 0 1 2 3 0 1"]


def write_curve(folder: EngineFolder, threads: int) -> None:
    """Steps that take 10 ms and 0.2 ms a token, blocks that take 0.2 ms: drafting promises much."""
    sizes = [(r, k) for r in (1, 2, 4, 8) for k in (1, 2, 4, 5)]
    CurveRecord(
        engine=engine_fingerprint(folder), machine=machine_fingerprint(threads), created="2026-01-01T00:00:00+00:00",
        stable=True,
        target=tuple(TargetPoint(r, float(k), 32.0, COUNT, 0.01 + 2e-4 * r * k, SPREAD_S) for r, k in sizes),
        drafter=tuple(DrafterPoint(r, COUNT, 2e-4 + 1e-5 * r, SPREAD_S) for r in (1, 2, 4, 8)),
    ).write(folder)


@pytest.fixture(scope="module")
def adaptive_settings(tiny_settings: ServingSettings, tmp_path_factory: pytest.TempPathFactory) -> ServingSettings:
    folder = EngineFolder(tmp_path_factory.mktemp("adaptive") / "engine")
    shutil.copytree(tiny_settings.engine_folder, folder.root)
    settings = replace(
        tiny_settings, engine_folder=str(folder.root), policy="adaptive+lookup", online_costs=False,
        switchable_policies=True,
    )
    write_curve(folder, settings.threads)
    return settings


@pytest.fixture(scope="module")
def adaptive_server(adaptive_settings: ServingSettings) -> Iterator[SupervisedServer]:
    with running_server(adaptive_settings, model_repository()) as server:
        yield server


@pytest.fixture
def adaptive(adaptive_server: SupervisedServer) -> Iterator[Connection]:
    with Connection(adaptive_server.grpc_address) as connection:
        yield connection


def answer(connection: Connection, generation: Generation) -> tuple[list[int], dict]:
    chunks = list(connection.generate(generation, timeout_s=120))
    return [token for chunk in chunks for token in chunk.token_ids], dict(chunks[-1].statistics or {})


def test_sampled_tokens_have_their_frequencies_under_the_adaptive_policy_at_load(adaptive: Connection) -> None:
    speculative = tokens_at(adaptive, range(SEEDS), 1.0, None)
    plain = tokens_at(adaptive, range(SEEDS, 2 * SEEDS), 1.0, 0)
    assert p_value(speculative, plain) > LEVEL


def test_greedy_answers_are_those_of_plain_decoding_and_both_sources_draft(
    adaptive: Connection, adaptive_server: SupervisedServer,
) -> None:
    def both(prompt: str) -> tuple[list[int], list[int]]:
        drafted, plain = (
            answer(adaptive, Generation(text_input=prompt, max_tokens=60, max_draft_tokens=drafts, ignore_eos=True))[0]
            for drafts in (None, 0)
        )
        return drafted, plain

    with ThreadPoolExecutor(4) as pool:
        for drafted, plain in pool.map(both, PROMPTS):
            assert drafted == plain
    seen = metrics(adaptive_server)
    assert seen["dspark_lookup_verified_tokens_total"] > 0
    assert seen["dspark_verified_tokens_total"] > seen["dspark_lookup_verified_tokens_total"]
    assert seen["dspark_profiled"] == 1.0


def test_a_request_may_ask_for_at_least_so_many_drafts(adaptive: Connection) -> None:
    sampled = Generation(text_input="ab", max_tokens=20, ignore_eos=True, temperature=1.0, seed=1)
    _, statistics = answer(adaptive, replace(sampled, min_draft_tokens=4))
    full = statistics["rounds"] - 4                          # the last rounds have no room for whole blocks
    assert statistics["verified_by_position"][3] >= full


def test_policies_change_between_loads_and_never_under_one(adaptive: Connection) -> None:
    _, plain = answer(adaptive, Generation(text_input="ab", max_tokens=20, policy="none", ignore_eos=True))
    _, whole = answer(adaptive, Generation(text_input="ab", max_tokens=20, policy="full", ignore_eos=True))
    assert plain["verified"] == 0 and whole["verified"] > 0
    long = iter(adaptive.generate(Generation(text_input="ab", max_tokens=150, ignore_eos=True), timeout_s=120))
    next(long)
    with pytest.raises(RemoteError, match=r"UNAVAILABLE.*while no other request is served"):
        answer(adaptive, Generation(text_input="ab", max_tokens=5, policy="fixed:1"))
    assert sum(len(chunk.token_ids) for chunk in long) > 100
    with pytest.raises(RemoteError, match=r"INVALID_ARGUMENT.*unknown policy 'best'"):
        answer(adaptive, Generation(text_input="ab", max_tokens=5, policy="best"))
    answer(adaptive, Generation(text_input="ab", max_tokens=5, policy="adaptive+lookup"))


def test_coupled_answers_depend_on_the_seed_and_not_on_the_policy(adaptive_settings: ServingSettings) -> None:
    settings = replace(adaptive_settings, verification="coupled")
    sampled = [
        Generation(text_input=prompt, max_tokens=40, ignore_eos=True, temperature=1.0, seed=seed)
        for seed, prompt in enumerate(PROMPTS)
    ]
    with running_server(settings, model_repository()) as server, Connection(server.grpc_address) as connection:
        def under(policy: str, streams: int) -> tuple[list[list[int]], int]:
            answer(connection, Generation(text_input="ab", max_tokens=1, policy=policy))
            with ThreadPoolExecutor(streams) as pool:
                answers = list(pool.map(lambda one: answer(connection, one), sampled))
            return [tokens for tokens, _ in answers], sum(statistics["accepted"] for _, statistics in answers)

        plain, accepted_plain = under("none", 1)
        assert accepted_plain == 0
        for policy, streams in (("full", 1), ("adaptive:global+lookup", 6)):
            drafted, accepted = under(policy, streams)
            assert drafted == plain
            assert accepted > 0
    assert len({tuple(tokens) for tokens in plain}) == len(PROMPTS)


def test_a_server_that_is_no_benchmark_keeps_its_policy(connection: Connection) -> None:
    with pytest.raises(RemoteError, match=r"INVALID_ARGUMENT.*keeps its policy"):
        answer(connection, Generation(text_input="ab", max_tokens=5, policy="none"))


def test_an_adaptive_policy_without_a_curve_is_refused_unless_that_is_allowed(
    adaptive_settings: ServingSettings, tmp_path: Path,
) -> None:
    bare = EngineFolder(tmp_path / "engine")
    shutil.copytree(adaptive_settings.engine_folder, bare.root)
    (bare.root / "curve.json").unlink()
    settings = replace(adaptive_settings, engine_folder=str(bare.root), switchable_policies=False)
    with pytest.raises(ConfigurationError, match=r"dspark profile.*--allow-unprofiled"):
        check_deployment(settings)
    with running_server(replace(settings, allow_unprofiled=True), model_repository()) as server:
        with Connection(server.grpc_address) as connection:
            _, statistics = answer(connection, Generation(text_input="ab", max_tokens=20, ignore_eos=True))
        assert statistics["verified_by_position"][-1] > 0        # everything is verified
        assert metrics(server)["dspark_profiled"] == 0.0
