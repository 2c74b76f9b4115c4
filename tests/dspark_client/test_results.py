"""What measuring verbs make of answers: differences, accepted tokens a round, metrics."""

from __future__ import annotations

import json

import pytest
from dspark.errors import ConfigurationError
from dspark.orchestrator.statistics import SequenceStatistics
from dspark_client.acceptance import summarise
from dspark_client.cli import spread
from dspark_client.load import Answer
from dspark_client.lossless import differences
from dspark_client.metrics import parse_metrics
from dspark_client.reporting import parse_numbers

PAGE = """
# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="target",version="1"} 41
nv_inference_request_success{model="dspark",version="1"} 7
some_gauge 0.5
odd{text="a \\"b\\", {c}"} 1e-3
"""


def answer(rounds: int, accepted: int, judged_at: list[int], accepted_at: list[int]) -> Answer:
    by_position = {"judged_by_position": judged_at, "accepted_by_position": accepted_at}
    statistics = {"rounds": rounds, "accepted": accepted, **by_position}
    return Answer("", tuple(range(1 + rounds + accepted)), (0.1,), (1,), statistics)


def test_equal_sequences_have_no_differences() -> None:
    assert list(differences((1, 2, 3), (1, 2, 3))) == []


def test_differences_name_the_position_and_both_tokens() -> None:
    assert list(differences((1, 2, 3), (1, 5, 3))) == [(1, 2, 5)]


def test_a_shorter_answer_differs_in_every_token_it_lacks() -> None:
    assert list(differences((1, 2, 3), (1,))) == [(1, 2, None), (2, 3, None)]
    assert list(differences((), (4,))) == [(0, None, 4)]


def test_tau_weighs_answers_by_their_rounds_and_counts_the_bonus_token() -> None:
    found = summarise([answer(15, 20, [15, 12, 0], [12, 8, 0]), answer(25, 0, [25, 0, 0], [0, 0, 0])])
    assert found.tau == 1 + 20 / 40
    assert found.rounds == 40 and found.tokens == 36 + 26
    assert found.ci95[0] <= found.tau <= found.ci95[1]


def test_acceptance_by_position_is_that_of_drafts_whose_predecessors_were_accepted() -> None:
    statistics = SequenceStatistics(block_size=4, submitted=0.0)
    for verified, accepted in [(3, 3), (3, 1), (3, 0), (2, 2), (1, 1), (0, 0)]:
        statistics.count_round(verified, accepted, lookup=False)
    told = json.loads(statistics.report(seed=0, prompt_tokens=1, output_tokens=1))
    found = summarise([Answer("", (), (), (), told)])
    assert found.acceptance_by_position == [4 / 5, round(2 / 3, 4), 1.0, None]      # not 4/5, 2/4, 1/3
    assert told["verified_by_position"] == [5, 4, 3, 0] and told["judged_by_position"] == [5, 3, 1, 0]


def test_answers_without_speculation_bring_one_token_a_round() -> None:
    assert summarise([answer(5, 0, [0, 0], [0, 0])]).tau == 1.0


def test_metrics_are_summed_over_what_is_not_asked_for() -> None:
    assert parse_metrics(PAGE)["nv_inference_request_success"] == 48
    assert parse_metrics(PAGE, model="target") == {"nv_inference_request_success": 41}
    assert parse_metrics(PAGE)["some_gauge"] == 0.5
    assert parse_metrics(PAGE)["odd"] == 1e-3


def test_several_files_may_follow_one_prompts_option() -> None:
    given = ["evaluate", "--prompts", "a", "b", "--limit", "3", "--prompts", "c"]
    assert spread(given) == ["evaluate", "--prompts", "a", "--prompts", "b", "--limit", "3", "--prompts", "c"]
    assert spread(["ask", "hello", "--seed", "1"]) == ["ask", "hello", "--seed", "1"]


def test_concurrencies_are_a_list_of_positive_numbers() -> None:
    assert parse_numbers("concurrency", "1, 8,16") == [1, 8, 16]
    for bad in ("", "0", "1,,2", "a", "-1", "1.5"):
        with pytest.raises(ConfigurationError, match=r"concurrency .*positive numbers"):
            parse_numbers("concurrency", bad)
