"""Simulation: recorded rounds through step times and the product's policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling import make_policy
from dspark.scheduling.curve_record import CurveRecord, DrafterPoint, TargetPoint
from dspark_client.bench.simulated import SimulationOptions, simulated_sweep
from dspark_client.calibrate import recording as recording_text
from dspark_client.calibration_fit import PromptRounds
from dspark_client.prompts import Prompt
from dspark_client.published_curve import PublishedCosts
from dspark_client.recorded_rounds import read_recorded_rounds
from dspark_client.rounds_recorder import Round
from dspark_client.simulation import RecordedSequence, Simulation

GAMMA = 3
PLAIN = {"4": 382.0, "8": 729.0, "16": 1343.0, "32": 2393.0, "64": 4095.0, "128": 6341.0, "256": 8878.0}
COSTS = PublishedCosts.of({"plain_tokens_per_second": PLAIN, "drafter_seconds": 0.002})
SURE, UNSURE = [4.0] * GAMMA, [-4.0] * GAMMA


def recording(accepted: list[int], logits: list[list[float]] | None = None) -> RecordedSequence:
    given = [[4.0 if j < a else -4.0 for j in range(GAMMA)] for a in accepted] if logits is None else logits
    return RecordedSequence("math", True, np.array(given, np.float32), np.array(accepted, np.int32))


def simulation(policy: str, *recordings: RecordedSequence, streams: int = 2, seed: int = 0) -> Simulation:
    return Simulation(make_policy(policy, GAMMA, COSTS), COSTS, recordings, streams, seed)


def lines(*rounds: dict[str, object]) -> str:
    return "\n".join(map(json.dumps, rounds))


def a_round(number: int = 0, prompt: str = "gsm8k/0", **changes: object) -> dict[str, object]:
    values = {"prompt": prompt, "domain": "math", "temperature": 0.0, "round": number, "logits": SURE, "accepted": 2}
    return {**values, "verified": GAMMA, **changes}


def test_whole_blocks_replay_the_recording_exactly() -> None:
    simulated = simulation("full", recording([3, 0, 1]), streams=1)
    assert [simulated.round().tokens.tolist() for _ in range(6)] == [[4], [1], [2]] * 2


def test_a_round_takes_the_drafters_time_and_that_of_all_its_tokens() -> None:
    plain, drafted = (simulation(policy, recording([0])).round() for policy in ("none", "fixed:2"))
    assert plain.seconds == COSTS.target_seconds(2, np.array([2]), 0.0)[0] and plain.drafted == 0
    assert drafted.seconds == COSTS.target_seconds(2, np.array([6]), 0.0)[0] + 0.002
    assert drafted.drafted == 2 * GAMMA and drafted.lengths.tolist() == [2, 2]


def test_a_shorter_prefix_keeps_what_it_covers_of_the_accepted_drafts() -> None:
    simulated = simulation("fixed:1", recording([3, 0]), streams=1)
    assert [simulated.round().tokens.tolist() for _ in range(2)] == [[2], [1]]


def test_a_threshold_reads_the_recorded_confidence() -> None:
    found = simulation("threshold:0.5", recording([0], [[4.0, 4.0, -4.0]]), recording([0], [[4.0, 4.0, -4.0]])).round()
    assert found.lengths.tolist() == [2, 2]


def test_policies_of_one_seed_replay_the_same_sequences() -> None:
    recordings = [recording([number % 4]) for number in range(8)]
    full, again, other = (
        [simulated.round().tokens.tolist() for _ in range(8)]
        for simulated in (simulation("full", *recordings, seed=s) for s in (1, 1, 2))
    )
    assert full == again != other


def test_a_policy_that_weighs_cost_leaves_out_a_drafter_that_is_never_right() -> None:
    simulated = simulation("adaptive", recording([0] * 40, [UNSURE] * 40), streams=4)
    for _ in range(200):
        simulated.round()
    assert sum(simulated.round().drafted for _ in range(200)) < 200 * 4 * GAMMA / 4


def test_a_policy_that_weighs_cost_drafts_where_drafts_are_right() -> None:
    simulated = simulation("adaptive", recording([3] * 40, [SURE] * 40), streams=4)
    for _ in range(50):
        simulated.round()
    assert simulated.round().tokens.tolist() == [4] * 4


@pytest.mark.parametrize("concurrency", [4, 16, 256])
def test_the_plain_column_of_a_published_table_is_reproduced(concurrency: int) -> None:
    seconds = simulation("none", recording([1]), streams=concurrency).round().seconds
    assert concurrency / seconds == pytest.approx(PLAIN[str(concurrency)])


def test_published_times_are_linear_between_and_rise_beyond_the_table() -> None:
    costs = PublishedCosts.of({"plain_tokens_per_second": {"1": 100.0, "3": 150.0}})
    assert costs.target_seconds(9, np.array([1, 2, 3, 5]), 0.0).tolist() == pytest.approx([0.01, 0.015, 0.02, 0.03])
    assert costs.drafter_seconds(5) == 0.0


def test_a_published_step_never_gets_faster_with_more_tokens() -> None:
    costs = PublishedCosts.of({"plain_tokens_per_second": {"1": 100.0, "2": 400.0, "4": 500.0}})
    assert (np.diff(costs.target_seconds(1, np.arange(1, 20), 0.0)) >= 0).all()


def test_drafter_times_may_depend_on_the_sequences() -> None:
    table = {"plain_tokens_per_second": PLAIN, "drafter_seconds": {"1": 0.001, "3": 0.003}}
    assert PublishedCosts.of(table).drafter_seconds(2) == pytest.approx(0.002)


@pytest.mark.parametrize("table", [
    {}, {"plain_tokens_per_second": [1]}, {"plain_tokens_per_second": {"4": 1.0}},
    {"plain_tokens_per_second": {"4": 0.0, "8": 1.0}}, {"plain_tokens_per_second": {"a": 1.0, "8": 1.0}},
    {"plain_tokens_per_second": PLAIN, "drafter_seconds": -1.0},
])
def test_a_table_that_is_none_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="published table"):
        PublishedCosts.of(table)


def test_recorded_rounds_are_put_in_order_by_prompt_and_temperature(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(lines(
        a_round(1, accepted=0), a_round(0, accepted=3), a_round(temperature=1.0), a_round(prompt="b", domain="chat"),
    ))
    first, sampled, other = read_recorded_rounds(path)
    assert first.accepted.tolist() == [3, 0] and first.greedy and first.logits.shape == (2, GAMMA)
    assert not sampled.greedy and other.domain == "chat"


def test_a_recording_of_calibrate_is_read_as_it_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    rounds = [Round(0, np.array(SURE, np.float32), 3, 2), Round(1, np.array(UNSURE, np.float32), 2, 1)]
    prompt = Prompt("gsm8k/0", "math", ("1 + 1",), "gsm8k")
    path.write_text(recording_text([PromptRounds(prompt, 1.0, rounds)]))
    (found,) = read_recorded_rounds(path)
    assert found.logits.tolist() == [SURE, UNSURE] and found.accepted.tolist() == [2, 1]
    assert found.domain == "math" and not found.greedy


def test_a_drafter_without_confidence_head_has_nan_logits(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(lines(a_round(logits=[None] * GAMMA)))
    assert np.isnan(read_recorded_rounds(path)[0].logits).all()


@pytest.mark.parametrize("bad", [
    a_round(verified=1), a_round(verified=4), a_round(accepted=4), a_round(logits=3), a_round(round="x"),
    {"prompt": "a"},
])
def test_a_round_that_cannot_be_replayed_is_refused_naming_its_line(tmp_path: Path, bad: dict[str, object]) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(lines(a_round(), bad))
    with pytest.raises(ConfigurationError, match=r"rounds\.jsonl, line 2"):
        read_recorded_rounds(path)


@pytest.mark.parametrize("text", ["", lines(a_round(), a_round(logits=[1.0], verified=1, accepted=0))])
def test_rounds_of_no_or_several_block_sizes_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="one block size"):
        read_recorded_rounds(path)


def options(tmp_path: Path, *policies: str) -> SimulationOptions:
    curve, rounds = tmp_path / "vllm.json", tmp_path / "rounds.jsonl"
    curve.write_text(json.dumps({"plain_tokens_per_second": PLAIN, "drafter_seconds": 0.002}))
    rounds.write_text(lines(*[a_round(n, accepted=n % 4) for n in range(8)], a_round(domain="chat", accepted=0)))
    return SimulationOptions(curve, rounds, policies, [4, 64], True, 2, rounds=50, seed=0)


def test_a_simulated_sweep_has_the_points_of_a_sweep(tmp_path: Path) -> None:
    report = simulated_sweep(options(tmp_path, "none", "full"))
    points = {(point.policy, point.concurrency, point.domain): point for point in report.points}
    assert len(points) == len(report.points) == 8 and report.settings.simulated
    plain, full = points["none", 64, "chat"], points["full", 64, "chat"]
    assert plain.tokens_per_second == pytest.approx(PLAIN["64"], abs=0.01) and plain.ratio_to_none == 1.0
    assert full.tau == 1.0 and full.ratio_to_none < 1.0 and full.verified_per_request == GAMMA
    assert points["full", 4, "math"].tau == pytest.approx(2.5, abs=0.2)
    assert plain.ttft_ms is None and plain.repeats == 2


def test_a_measured_curve_gives_the_times_of_its_engine(tmp_path: Path) -> None:
    folder = EngineFolder(tmp_path / "engine")
    folder.root.mkdir()
    target = [
        TargetPoint(sequences, tokens / sequences, context, 7, 0.01 + 0.001 * tokens, 0.0)
        for sequences in (1, 2, 4) for tokens in (sequences, 4 * sequences) for context in (16.0, 256.0)
    ]
    drafter = [DrafterPoint(sequences, 7, 0.002 + 0.001 * sequences, 0.0) for sequences in (1, 2, 4)]
    path = CurveRecord("engine", "machine", "now", True, tuple(target), tuple(drafter)).write(folder)
    report = simulated_sweep(replace(options(tmp_path, "none", "full"), curve=path, concurrencies=[4], by_domain=False))
    plain, full = report.points
    assert plain.tokens_per_second == pytest.approx(4 / 0.014, rel=0.001)
    assert full.tokens_per_second == pytest.approx(4 * full.tau / (0.006 + 0.026), rel=0.001)


def test_a_curve_of_another_name_is_refused(tmp_path: Path) -> None:
    asked = options(tmp_path, "none")
    asked.curve.write_text("{}")
    with pytest.raises(ConfigurationError, match="neither a published table nor called"):
        simulated_sweep(asked)


def test_lookup_cannot_be_simulated(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no tokens to look up"):
        simulated_sweep(options(tmp_path, "adaptive+lookup"))
