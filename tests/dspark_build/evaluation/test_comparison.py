"""Scores, intervals and paired ratios of a comparison, and its files."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from dspark.errors import ConfigurationError
from dspark_build.drafters import initialise_drafter, initialise_eagle, save_any_drafter
from dspark_build.evaluation import CompareConfig, compare_drafters, draw, figure_paths, markdown
from dspark_build.evaluation.bootstrap import Estimate, Prompts, mean
from dspark_build.evaluation.replay import Outcomes
from dspark_build.evaluation.results import score
from dspark_build.evaluation.rounds import tally
from dspark_build.training.data import TrainingSequence
from synthetic import TAPS, make_training_data


def response(prompt_id: str, domain: str, length: int = 21) -> TrainingSequence:
    nothing = np.zeros((length, 1), np.float16)
    return TrainingSequence(
        id=prompt_id, domain=domain, temperature=0.0, prompt_length=1, tokens=np.zeros(length, np.int32),
        taps=nothing[:, None], last=nothing, log_z=np.zeros(length, np.float32), tap_places=(0,),
    )  # fmt: skip


def outcomes(chance: float, random: np.random.Generator, gamma: int = 3) -> Outcomes:
    drafted = np.minimum(gamma, np.arange(18, -1, -1)).astype(np.int32)
    stands = random.random((19, gamma)) < chance
    return Outcomes(drafted, np.minimum(drafted, stands.cumprod(1).sum(1)).astype(np.int32))


@pytest.fixture
def scored():
    random = np.random.default_rng(5)
    responses = [response(f"{name}/{i}", domain) for name, domain in (("gsm8k", "math"), ("mbpp", "code"))
                 for i in range(20)]  # fmt: skip
    good = tally([outcomes(0.3 + 0.6 * random.random(), random) for _ in responses], 3)
    return responses, good


def test_tau_of_a_data_set_is_its_tokens_a_round_and_the_mean_weighs_data_sets_alike(scored):
    responses, good = scored
    found = score(0.0, responses, {"a": good}, [], seed=0).drafters["a"]
    expected = [good.tokens[part].sum() / good.rounds[part].sum() for part in (slice(20), slice(20, 40))]
    assert [found.datasets["gsm8k"].tau, found.datasets["mbpp"].tau] == pytest.approx(expected, abs=1e-4)
    assert found.tau == pytest.approx(np.mean(expected), abs=1e-4)
    assert found.domains["math"] == found.datasets["gsm8k"]
    for each in (*found.datasets.values(), found):
        assert each.ci95[0] < each.tau < each.ci95[1]
    assert found.tau_by_drafts[-1] == found.tau and sorted(found.tau_by_drafts) == found.tau_by_drafts
    assert found.datasets["gsm8k"].acceptance[0] == pytest.approx(
        good.accepted[:20, 0].sum() / good.tested[:20, 0].sum(), abs=1e-4
    )


def test_the_ratio_of_two_drafters_is_taken_on_the_same_prompts(scored):
    responses, good = scored
    # The other takes a quarter more rounds on every prompt: the ratio is exact whichever prompts are drawn.
    better = dataclasses.replace(good, rounds=4 * good.rounds)
    worse = dataclasses.replace(good, rounds=5 * good.rounds)
    (pair,) = score(0.0, responses, {"a": better, "b": worse}, [("a", "b")], seed=0).ratios
    assert pair.ratio == 1.25 and pair.ci95 == (1.25, 1.25)
    assert pair.datasets["mbpp"].ratio == 1.25 and pair.datasets["mbpp"].ci95 == (1.25, 1.25)


def test_resampled_prompts_bring_all_their_responses():
    prompts = Prompts(["a", "a", "b"], seed=0, resamples=200)
    tau = prompts.tau(np.array([10, 30, 60]), np.array([10, 10, 20]))
    assert tau.value == 100 / 40
    assert {round(value, 9) for value in tau.resampled.tolist()} == {2.0, 2.5, 3.0}


def test_the_interval_of_a_tau_has_the_width_of_its_standard_error():
    random = np.random.default_rng(0)
    tokens = random.integers(50, 150, 400)
    tau = Prompts([str(i) for i in range(400)], seed=0).tau(tokens, np.full(400, 50))
    low, high = tau.interval
    assert high - low == pytest.approx(2 * 1.96 * (tokens / 50).std() / 20, rel=0.15)


def test_the_mean_over_data_sets_is_narrower_than_each():
    random = np.random.default_rng(0)
    parts = [Estimate(2.0, 2 + random.standard_normal(1000)) for _ in range(4)]
    low, high = mean(parts).interval
    assert high - low == pytest.approx(2 * 1.96 / 2, rel=0.1)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    root = tmp_path_factory.mktemp("compared")
    checkpoint, responses, states = make_training_data(root, sequences=8)
    vanilla = initialise_drafter(
        checkpoint, target_layer_ids=TAPS, start_layers=[0], block_size=5, markov_rank=4, mask_token_id=3
    )
    save_any_drafter(vanilla, root / "vanilla", checkpoint)
    save_any_drafter(initialise_eagle(checkpoint, target_layer_ids=[1], block_size=4), root / "eagle3", checkpoint)
    config = CompareConfig(
        checkpoint, responses, states, {"vanilla": root / "vanilla", "eagle3": root / "eagle3"}, lookup=True
    )
    return config, compare_drafters(config)


def test_a_comparison_has_a_row_for_every_drafter_and_lookup_and_is_the_same_again(compared):
    config, found = compared
    assert [each.temperature for each in found.temperatures] == [0.0, 1.0]
    rows = {"vanilla": 5, "eagle3": 4, "prompt lookup": 7, "lookup, then vanilla": 5, "lookup, then eagle3": 4}
    for each in found.temperatures:
        assert {name: scores.block for name, scores in each.drafters.items()} == rows
        assert [(pair.numerator, pair.denominator) for pair in each.ratios] == [
            ("vanilla", other) for other in list(rows)[1:]
        ]
        # Every token of this language comes once: there is nothing to look up.
        assert each.drafters["prompt lookup"].tau == 1.0
        assert each.drafters["lookup, then vanilla"].tau == each.drafters["vanilla"].tau
    assert compare_drafters(config) == found


def test_json_tables_and_pictures_hold_every_row(compared, tmp_path):
    _, found = compared
    values = json.loads(found.to_json())
    first = values["temperatures"][0]
    assert first["drafters"]["vanilla"]["datasets"]["sentence"].keys() == {
        "tau", "ci95", "rounds", "tokens", "acceptance"
    }
    assert len(first["drafters"]["eagle3"]["tau_by_drafts"]) == 4
    text = markdown(found)
    assert "## Temperature 0" in text and "## Temperature 1" in text
    for name in first["drafters"]:
        assert text.count(f"| {name} |") == 6
    paths = draw(found, tmp_path / "out" / "compare.svg")
    assert [path.name for path in paths] == ["compare-positions.svg", "compare-sweep.svg"]
    for path in paths:
        assert path.read_text().count("<!-- lookup, then eagle3 -->") == 2


def test_what_does_not_fit_is_named(compared, tmp_path):
    config, _ = compared
    settings = dict(target=config.target, responses=config.responses, states=config.states)
    with pytest.raises(ConfigurationError, match="at least one drafter"):
        CompareConfig(**settings, drafters={})
    with pytest.raises(ConfigurationError, match="ratio of 'nobody'"):
        CompareConfig(**settings, drafters=config.drafters, ratios=(("vanilla", "nobody"),))
    with pytest.raises(ConfigurationError, match="min_match"):
        CompareConfig(**settings, drafters=config.drafters, min_match=9)
    with pytest.raises(ConfigurationError, match="plot"):
        figure_paths(tmp_path / "figure.xyz")
    with pytest.raises(ConfigurationError, match=r"config\.json cannot be read"):
        compare_drafters(CompareConfig(**settings, drafters={"a": tmp_path}))
