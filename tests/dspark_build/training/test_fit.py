"""The fit stage: exact resume, a language it can learn wholly, refusals."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest
import torch
from dspark.errors import ConfigurationError
from dspark_build.drafters import initialise_drafter
from dspark_build.models.drafter import Drafter
from dspark_build.training import FitConfig, fit_drafter, plot_curves
from dspark_build.training.responses import shard_path
from dspark_build.training.states import array_path
from synthetic import TAPS, make_training_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_training_data(tmp_path_factory.mktemp("language"))


def config_of(data: tuple[Path, Path, Path], output: Path, **changes) -> FitConfig:
    checkpoint, responses, states = data
    settings = dict(
        steps=8, sequences_per_step=3, anchors_per_sequence=5, window=16, frequent_tokens=20, sampled_tokens=10,
        held_out=0.25, checkpoint_every=2, validate_every=4, log_every=1, learning_rate=3e-3, warm_up_steps=2,
    )  # fmt: skip
    return FitConfig(checkpoint, responses, states, output, **(settings | changes))


def new_drafter(data: tuple[Path, Path, Path], head: str = "vanilla") -> Drafter:
    return initialise_drafter(
        data[0], target_layer_ids=TAPS, start_layers=[0], markov_head_type=head, markov_rank=16, mask_token_id=3
    )


def curve(output: Path, name: str) -> list[list[str]]:
    with (output / name).open(newline="") as file:
        return list(csv.reader(file))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("head", ["none", "vanilla", "gated", "rnn"])
def test_a_killed_and_resumed_run_ends_bit_equal_to_an_uninterrupted_one(data, tmp_path, head):
    whole = new_drafter(data, head)
    fit_drafter(config_of(data, tmp_path / "whole"), whole)

    def kill_after_five(what: str, done: int, total: int) -> None:
        if done == 5:
            raise Interrupted

    config = config_of(data, tmp_path / "resumed")
    with pytest.raises(Interrupted):
        fit_drafter(config, new_drafter(data, head), kill_after_five)
    resumed = new_drafter(data, head)
    result = fit_drafter(config, resumed)
    assert result.finished and result.step == 8
    for (name, ours), theirs in zip(resumed.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    for name in ("losses.csv", "validation.csv"):
        assert curve(config.output, name) == curve(tmp_path / "whole", name)
    assert [row[0] for row in curve(config.output, "losses.csv")[1:]] == [str(step) for step in range(1, 9)]


def test_time_running_out_saves_and_a_later_call_finishes(data, tmp_path):
    config = config_of(data, tmp_path, seconds=1e-9, checkpoint_every=1000)
    first = fit_drafter(config, new_drafter(data))
    assert not first.finished and first.step == 1
    assert fit_drafter(dataclasses.replace(config, seconds=0.0), new_drafter(data)).finished


@pytest.mark.parametrize(("frequent", "sampled"), [(0, 0), (24, 12)], ids=["whole vocabulary", "sampled part"])
def test_a_language_with_one_successor_a_token_is_accepted_almost_whole(data, tmp_path, frequent, sampled):
    config = config_of(
        data, tmp_path, steps=250, sequences_per_step=6, anchors_per_sequence=12, frequent_tokens=frequent,
        sampled_tokens=sampled, learning_rate=1e-2, warm_up_steps=10, validate_every=1000, checkpoint_every=1000,
    )  # fmt: skip
    validation = fit_drafter(config, new_drafter(data)).validation
    assert validation.greedy.tau > 7.5
    assert validation.sampled.tau > 7.0


def test_another_configuration_is_not_resumed(data, tmp_path):
    config = config_of(data, tmp_path, steps=1)
    fit_drafter(config, new_drafter(data))
    with pytest.raises(ConfigurationError, match="another configuration"):
        fit_drafter(dataclasses.replace(config, learning_rate=1e-3), new_drafter(data))


def test_a_damaged_checkpoint_is_named(data, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"nonsense")
    with pytest.raises(ConfigurationError, match=r"checkpoint\.pt cannot be read"):
        fit_drafter(config_of(data, tmp_path), new_drafter(data))


@pytest.mark.parametrize("array", ["taps", "last", "log_z"])
def test_a_corrupted_state_shard_is_named(tmp_path, array):
    data = make_training_data(tmp_path / "data", sequences=4)
    path = array_path(data[2], array, 1)
    content = bytearray(path.read_bytes())
    content[-3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{path.name} is damaged; delete"):
        fit_drafter(config_of(data, tmp_path / "out"), new_drafter(data))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:200] + b"xxxx" + b[204:], lambda b: b""])
def test_a_corrupted_response_shard_is_named(tmp_path, damage):
    data = make_training_data(tmp_path / "data", sequences=4)
    path = shard_path(data[1], 0)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigurationError, match=rf"{path.name} is damaged"):
        fit_drafter(config_of(data, tmp_path / "out"), new_drafter(data))


def test_taps_that_were_not_cached_are_refused(data, tmp_path):
    drafter = initialise_drafter(data[0], target_layer_ids=[-1, 0], start_layers=[0], markov_rank=16, mask_token_id=3)
    with pytest.raises(ConfigurationError, match="tap -1 was not cached"):
        fit_drafter(config_of(data, tmp_path), drafter)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"steps": 0}, "steps"), ({"held_out": 1.0}, "held_out"), ({"precision": "fp8"}, "precision"),
     ({"warm_up_steps": -1}, "warm_up_steps"), ({"loss_weights": (1.0, -1.0, 0.0)}, "loss_weights")],
)  # fmt: skip
def test_settings_out_of_range_are_named(data, tmp_path, change, named):
    with pytest.raises(ConfigurationError, match=named):
        config_of(data, tmp_path, **change)


def test_the_learning_rate_warms_up_stays_and_cools_down(data, tmp_path):
    config = config_of(data, tmp_path, steps=100, learning_rate=1.0, warm_up_steps=4)
    rates = [config.learning_rate_at(step) for step in range(100)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[79] == rates[80] == 1.0 and rates[90] == 0.5 and rates[99] == 0.05


def test_a_run_can_be_resumed_with_fewer_steps_so_that_it_cools_down(data, tmp_path):
    config = config_of(data, tmp_path, steps=100, seconds=1e-9)
    fit_drafter(config, new_drafter(data))
    result = fit_drafter(dataclasses.replace(config, steps=4, cool_down=0.2, seconds=0.0), new_drafter(data))
    assert result.finished and result.step == 4
    assert [row[0] for row in curve(tmp_path, "losses.csv")[1:]] == ["1", "2", "3", "4"]


def test_the_curves_become_a_picture(data, tmp_path):
    fit_drafter(config_of(data, tmp_path), new_drafter(data))
    assert plot_curves(tmp_path).read_bytes().startswith(b"\x89PNG")
