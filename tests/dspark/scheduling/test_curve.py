"""A measured curve: what it says of steps that were measured and of others, and when it is refused."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from curves import EDGE, GAMMA, drafting, engine_folder, record_of, stairs, write_here
from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling.curve import ThroughputCurve
from dspark.scheduling.curve_record import CURVE_FILE, CurveRecord, DrafterPoint
from dspark.scheduling.loading import load_costs
from hypothesis import given, settings
from hypothesis import strategies as st

properties = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.fixture
def folder(tmp_path: Path) -> EngineFolder:
    return engine_folder(tmp_path / "engine")


def expected(sequences: int, tokens: np.ndarray, context: float) -> np.ndarray:
    return np.array([stairs(sequences, int(count), context) for count in tokens])


# --- what it says ---


@pytest.mark.parametrize("sequences", [1, 2, 8, 16, 32])
def test_measured_numbers_of_sequences_keep_their_times_and_the_ledge(sequences: int) -> None:
    curve = ThroughputCurve.of(record_of(), GAMMA)
    tokens = np.arange(sequences, sequences * (GAMMA + 1) + 1)
    np.testing.assert_allclose(curve.target_seconds(sequences, tokens, 300.0), expected(sequences, tokens, 300.0))


@pytest.mark.parametrize("sequences", [3, 5, 12, 24, 31])
def test_numbers_of_sequences_in_between_are_interpolated_with_the_ledge_in_its_place(sequences: int) -> None:
    curve = ThroughputCurve.of(record_of(), GAMMA)
    tokens = np.arange(sequences, sequences * (GAMMA + 1) + 1)
    np.testing.assert_allclose(curve.target_seconds(sequences, tokens, 64.0), expected(sequences, tokens, 64.0))


def test_prompts_that_ride_along_are_known_from_the_sequences_that_were_measured_with_them() -> None:
    curve = ThroughputCurve.of(record_of(), GAMMA)
    tokens = np.array([4 + EDGE, 200])
    np.testing.assert_allclose(curve.target_seconds(4, tokens, 64.0), expected(4, tokens, 64.0))


def test_beyond_the_largest_step_time_rises_as_over_the_last_doubling() -> None:
    curve = ThroughputCurve.of(record_of(), GAMMA)
    at = curve.target_seconds(32, np.array([128, 256, 512]), 0.0)
    assert at[2] - at[1] == pytest.approx(2 * (at[1] - at[0]))


def test_more_sequences_than_measured_cost_what_their_tokens_and_context_cost() -> None:
    curve = ThroughputCurve.of(record_of(), GAMMA)
    tokens = np.array([100])
    more = curve.target_seconds(40, tokens, 1000.0) - curve.target_seconds(32, tokens, 1000.0)
    assert more == pytest.approx(1000.0 * 3e-7 * 8)


def test_context_costs_nothing_where_it_was_not_varied() -> None:
    curve = ThroughputCurve.of(record_of(contexts=(64.0,)), GAMMA)
    tokens = np.array([8, 64])
    np.testing.assert_allclose(curve.target_seconds(8, tokens, 4000.0), expected(8, tokens, 64.0))


def test_context_that_seems_to_save_time_is_taken_to_cost_nothing() -> None:
    curve = ThroughputCurve.of(record_of(lambda r, b, c: stairs(r, b, 0) * (1 - c / 1e4)), GAMMA)
    assert (curve.context_cost.per_sequence, curve.context_cost.per_token) == (0.0, 0.0)


def test_context_is_given_to_the_tokens_alone_where_sequences_seem_to_save_time() -> None:
    curve = ThroughputCurve.of(record_of(lambda r, b, c: stairs(r, b, 0) + c * (4e-7 * b - 1e-7 * r)), GAMMA)
    assert curve.context_cost.per_sequence == 0.0
    assert curve.context_cost.per_token == pytest.approx(4e-7, rel=0.3)


def test_the_drafter_is_interpolated_over_sequences_and_goes_on_straight() -> None:
    curve = ThroughputCurve.of(record_of(), GAMMA)
    for sequences in (1, 3, 16, 29, 32, 50):
        assert curve.drafter_seconds(sequences) == pytest.approx(drafting(sequences))


@properties
@given(
    noise=st.lists(st.floats(-0.07, 0.07), min_size=120, max_size=120),
    sequences=st.integers(1, 40),
    context=st.floats(0, 5000),
)
def test_time_never_falls_with_tokens_whatever_the_noise(noise: list[float], sequences: int, context: float) -> None:
    exact = record_of()
    points = tuple(
        replace(point, median_s=point.median_s * (1 + noise[i % len(noise)])) for i, point in enumerate(exact.target)
    )
    curve = ThroughputCurve.of(replace(exact, target=points), GAMMA)
    seconds = curve.target_seconds(sequences, np.arange(sequences, 600), context)
    assert (seconds > 0).all()
    assert (np.diff(seconds) >= -1e-15).all()


def test_a_dent_within_the_spread_becomes_flat() -> None:
    def dented(sequences: int, tokens: int, context: float) -> float:
        return stairs(sequences, tokens, context) * (0.85 if tokens == 4 and sequences == 1 else 1.0)

    curve = ThroughputCurve.of(record_of(dented, contexts=(64.0,), spread=0.01), GAMMA)
    three, four = curve.target_seconds(1, np.array([3, 4]), 64.0)
    assert three == pytest.approx(four)
    assert dented(1, 4, 64.0) < four < dented(1, 3, 64.0)


def test_what_is_written_is_what_is_read(folder: EngineFolder) -> None:
    record = record_of()
    record.write(folder)
    assert CurveRecord.read(folder) == record


# --- when it is refused ---


def refusal(folder: EngineFolder, threads: int = 0) -> str:
    with pytest.raises(ConfigurationError) as refused:
        ThroughputCurve.read(folder, GAMMA, threads)
    assert str(folder.root / CURVE_FILE) in str(refused.value)
    assert "dspark profile" in str(refused.value)
    return str(refused.value)


def test_a_curve_of_this_engine_and_machine_is_taken(folder: EngineFolder) -> None:
    write_here(folder, record_of())
    curve = ThroughputCurve.read(folder, GAMMA)
    assert curve.target_seconds(4, np.array([8]), 64.0) == pytest.approx(stairs(4, 8, 64.0))


def test_a_missing_curve(folder: EngineFolder) -> None:
    assert "does not exist" in refusal(folder)


def test_a_file_that_is_not_json(folder: EngineFolder) -> None:
    (folder.root / CURVE_FILE).write_text("{", "utf-8")
    assert "cannot be read" in refusal(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 2}'])
def test_a_file_of_another_format(folder: EngineFolder, content: str) -> None:
    (folder.root / CURVE_FILE).write_text(content, "utf-8")
    assert "not a throughput curve of format 1" in refusal(folder)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("engine", 3, "engine must be a string"),
        ("stable", 1, "stable must be true or false"),
        ("target", [], "target must be a list of measured steps"),
        ("drafter", None, "drafter must be a list of measured steps"),
        ("drafter", [3], r"drafter[0] must be an object"),
    ],
)
def test_a_field_of_the_wrong_kind(folder: EngineFolder, field: str, value: object, complaint: str) -> None:
    edit(folder, lambda values: values.update({field: value}))
    assert complaint in refusal(folder)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("median_s", float("nan"), "must be positive"),
        ("median_s", float("inf"), "below 1e+07"),
        ("median_s", 0, "must be positive"),
        ("median_s", -0.01, "must be positive"),
        ("spread_s", -1e-6, "must be at least 0"),
        ("sequences", 0, "must be at least 1"),
        ("sequences", 1.5, "must be a whole number"),
        ("sequences", True, "must be a whole number"),
        ("tokens_per_sequence", 0.5, "must be at least 1"),
        ("context", "long", "must be a number"),
        ("count", None, "must be a whole number"),
        ("count", 10**400, "below 1e+07"),
    ],
)
def test_a_point_with_an_impossible_value(folder: EngineFolder, field: str, value: object, complaint: str) -> None:
    edit(folder, lambda values: values["target"][2].update({field: value}))
    message = refusal(folder)
    assert f"target[2]: {field}" in message
    assert complaint in message


def test_a_size_that_occurs_twice(folder: EngineFolder) -> None:
    edit(folder, lambda values: values["target"].append(dict(values["target"][0])))
    assert "holds the size (1, 1.0, 64.0) twice" in refusal(folder)


def test_sequences_of_which_one_size_alone_is_known(folder: EngineFolder) -> None:
    record = record_of()
    write_here(folder, replace(record, target=tuple(p for p in record.target if p.sequences < 32 or p.tokens == 32)))
    assert "one size of step for 32 sequences" in refusal(folder)


def test_a_flat_curve(folder: EngineFolder) -> None:
    write_here(folder, record_of(lambda sequences, tokens, context: 0.02 + 1e-6 * tokens))
    message = refusal(folder)
    assert "flat" in message
    assert "--policy full" in message


def test_a_larger_step_that_is_clearly_faster(folder: EngineFolder) -> None:
    write_here(folder, record_of(lambda r, b, c: stairs(r, b, c) * (0.3 if (r, b) == (16, 96) else 1), spread=1e-3))
    assert "contradicts itself: a step of 96 tokens (16 sequences, context 64)" in refusal(folder)


def test_a_larger_step_that_is_faster_within_what_times_spread_is_taken(folder: EngineFolder) -> None:
    write_here(folder, record_of(lambda r, b, c: stairs(r, b, c) * (0.3 if (r, b) == (16, 96) else 1), spread=0.06))
    assert ThroughputCurve.read(folder, GAMMA).stable


def test_a_curve_that_calls_itself_unstable_may_contradict_itself_more(folder: EngineFolder) -> None:
    record = record_of(lambda r, b, c: stairs(r, b, c) * (0.55 if (r, b) == (16, 96) else 1))
    write_here(folder, record)
    assert "contradicts itself" in refusal(folder)
    write_here(folder, replace(record, stable=False))
    assert not ThroughputCurve.read(folder, GAMMA).stable


def test_a_drafter_that_is_clearly_faster_for_more_sequences(folder: EngineFolder) -> None:
    record = record_of()
    write_here(folder, replace(record, drafter=(*record.drafter, DrafterPoint(33, 7, 1e-3, 0.0))))
    assert "a draft for 33 sequences took 1 ms" in refusal(folder)


def test_a_curve_of_another_build(folder: EngineFolder) -> None:
    write_here(folder, record_of())
    (folder.drafter / "engine.json").write_text("{}", "utf-8")
    assert "another build of the engine" in refusal(folder)


def test_a_curve_of_another_machine(folder: EngineFolder) -> None:
    write_here(folder, record_of())
    edit(folder, lambda values: values.update({"machine": "a toaster, 1 cores, 1 threads of the target"}), keep=True)
    assert "measured on 'a toaster" in refusal(folder)


def test_a_curve_of_another_number_of_threads(folder: EngineFolder) -> None:
    write_here(folder, record_of(), threads=1)
    ThroughputCurve.read(folder, GAMMA, threads=1)
    assert "threads of the target" in refusal(folder, threads=3)


# --- doing without ---


def test_without_a_curve_serving_is_refused_with_the_way_out(folder: EngineFolder) -> None:
    with pytest.raises(ConfigurationError, match=r"dspark profile.*--allow-unprofiled"):
        load_costs(folder, GAMMA, allow_unprofiled=False)


def test_whoever_allows_it_is_served_without_a_curve_and_told(
    folder: EngineFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dspark"):
        assert load_costs(folder, GAMMA, allow_unprofiled=True) is None
    assert "without a throughput curve" in caplog.text


def test_an_unstable_curve_is_used_with_a_warning(folder: EngineFolder, caplog: pytest.LogCaptureFixture) -> None:
    write_here(folder, replace(record_of(), stable=False))
    with caplog.at_level(logging.WARNING, "dspark"):
        assert load_costs(folder, GAMMA, allow_unprofiled=False) is not None
    assert "while times varied" in caplog.text


def edit(folder: EngineFolder, change: object, keep: bool = False) -> None:
    """Change the JSON of a curve of this engine and machine; `keep` the one that is there."""
    if not keep:
        write_here(folder, record_of())
    path = folder.root / CURVE_FILE
    values = json.loads(path.read_text("utf-8"))
    change(values)
    path.write_text(json.dumps(values), "utf-8")
