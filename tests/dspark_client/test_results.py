"""What measuring verbs make of answers: differences, accepted tokens a round, metrics."""

from __future__ import annotations

import pytest
from dspark.errors import ConfigurationError
from dspark_client.acceptance import summarise
from dspark_client.cli import spread
from dspark_client.load import Answer
from dspark_client.lossless import differences
from dspark_client.metrics import parse_metrics
from dspark_client.reporting import parse_concurrency

PAGE = """
# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="target",version="1"} 41
nv_inference_request_success{model="dspark",version="1"} 7
some_gauge 0.5
odd{text="a \\"b\\", {c}"} 1e-3
"""


def answer(rounds: int, accepted: int, verified_at: list[int], accepted_at: list[int]) -> Answer:
    by_position = {"verified_by_position": verified_at, "accepted_by_position": accepted_at}
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
    found = summarise([answer(10, 20, [10, 10, 0], [12, 8, 0]), answer(30, 0, [30, 0, 0], [0, 0, 0])])
    assert found.tau == 1 + 20 / 40
    assert found.rounds == 40 and found.tokens == 31 + 31
    assert found.acceptance_by_position == [12 / 40, 0.8, None]
    assert found.ci95[0] <= found.tau <= found.ci95[1]


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
    assert parse_concurrency("1, 8,16") == [1, 8, 16]
    for bad in ("", "0", "1,,2", "a", "-1", "1.5"):
        with pytest.raises(ConfigurationError, match="positive numbers"):
            parse_concurrency(bad)
