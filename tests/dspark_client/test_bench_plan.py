"""What a sweep runs: every policy alike, in shuffled turns, with the same requests."""

from __future__ import annotations

import pytest
from dspark_client.bench import Level, LoadSize, Run, domains_of, plan_runs, requests_of
from dspark_client.open_loop import poisson_arrivals
from dspark_client.prompts import Prompt
from dspark_client.transport import Generation

POLICIES = ["none", "fixed:3", "adaptive"]
LEVELS = [Level(concurrency=1), Level(concurrency=8), Level(rate=0.5)]
DOMAINS = ["math", "math", "math", "chat", "chat"]
PROMPTS = [Prompt(f"set/{n}", domain, (f"question {n}",), "set") for n, domain in enumerate(DOMAINS)]


def asked(generations: list[Generation]) -> list[str]:
    return [generation.messages[0].content for generation in generations]


def test_every_policy_runs_once_at_every_level_and_domain_of_a_repeat() -> None:
    runs = plan_runs(POLICIES, LEVELS, ["math", "chat"], 2, seed=0)
    assert len(set(runs)) == len(runs) == 3 * 3 * 2 * 2
    for start in range(0, len(runs), 3):
        group = runs[start : start + 3]
        assert {run.policy for run in group} == set(POLICIES)
        assert len({(run.level, run.domain, run.repeat) for run in group}) == 1


def test_a_repeat_is_complete_before_the_next_begins() -> None:
    repeats = [run.repeat for run in plan_runs(POLICIES, LEVELS, ["all"], 3, seed=0)]
    assert repeats == sorted(repeats)


def test_the_order_of_policies_changes_but_follows_from_the_seed() -> None:
    runs = plan_runs(POLICIES, LEVELS, ["all"], 8, seed=1)
    orders = {tuple(run.policy for run in runs[start : start + 3]) for start in range(0, len(runs), 3)}
    assert len(orders) > 3
    assert runs == plan_runs(POLICIES, LEVELS, ["all"], 8, seed=1) != plan_runs(POLICIES, LEVELS, ["all"], 8, seed=2)


def test_adding_repeats_keeps_the_order_of_those_before() -> None:
    assert plan_runs(POLICIES, LEVELS, ["all"], 3, seed=1)[:18] == plan_runs(POLICIES, LEVELS, ["all"], 2, seed=1)


def test_all_policies_are_asked_the_same_with_the_same_seeds() -> None:
    size, settings = LoadSize(), Generation(max_tokens=4, seed=7)
    none, drafting = (requests_of(Run(p, 4, None, "all", 1), PROMPTS, size, settings) for p in ("none", "full"))
    assert none == drafting
    assert len({generation.seed for generation in none}) == len(none)


def test_domains_take_turns_and_may_be_measured_apart() -> None:
    mixed = requests_of(Run("none", 1, None, "all", 0), PROMPTS, LoadSize(at_least=5), Generation())
    assert asked(mixed) == ["question 0", "question 3", "question 1", "question 4", "question 2"]
    math = requests_of(Run("none", 1, None, "math", 0), PROMPTS, LoadSize(at_least=4), Generation())
    assert asked(math) == ["question 0", "question 1", "question 2", "question 0"]
    assert domains_of(PROMPTS, by_domain=True) == ["math", "chat"] and domains_of(PROMPTS, by_domain=False) == ["all"]


def test_a_repeat_goes_on_with_the_prompts_where_the_one_before_ended() -> None:
    size = LoadSize(per_stream=1, at_least=2)
    first, second = (requests_of(Run("none", 1, None, "math", r), PROMPTS, size, Generation()) for r in (0, 1))
    assert asked(first + second) == ["question 0", "question 1", "question 2", "question 0"]


@pytest.mark.parametrize(("level", "expected"), [
    (Level(concurrency=1), 8), (Level(concurrency=16), 48), (Level(rate=0.1), 8), (Level(rate=2.0), 60),
])
def test_a_load_has_enough_requests_to_keep_its_level_up(level: Level, expected: int) -> None:
    assert LoadSize(per_stream=3, seconds=30.0, at_least=8).requests(level) == expected


def test_poisson_arrivals_come_at_their_rate_and_follow_from_the_seed() -> None:
    arrivals = poisson_arrivals(4.0, 4001, seed=3)
    assert arrivals == sorted(arrivals) and arrivals[0] == 0.0
    assert arrivals[-1] == pytest.approx(1000.0, rel=0.1)
    assert arrivals == poisson_arrivals(4.0, 4001, seed=3) != poisson_arrivals(4.0, 4001, seed=4)
