"""The EAGLE-3-style baseline under the same trainer: it learns, and a resumed run is exact."""

from __future__ import annotations

import pytest
import torch
from dspark_build.drafters import initialise_eagle
from dspark_build.models.eagle import EagleDrafter
from dspark_build.training import FitConfig, fit_drafter
from synthetic import TAPS, make_training_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_training_data(tmp_path_factory.mktemp("language"))


def config_of(data, output, **changes) -> FitConfig:
    settings = dict(
        steps=6, sequences_per_step=3, anchors_per_sequence=5, window=16, frequent_tokens=20, sampled_tokens=10,
        held_out=0.25, checkpoint_every=2, validate_every=3, log_every=1, learning_rate=3e-3, warm_up_steps=2,
    )  # fmt: skip
    return FitConfig(*data, output, **(settings | changes))


def new_drafter(data) -> EagleDrafter:
    return initialise_eagle(data[0], target_layer_ids=TAPS)


class Interrupted(Exception):
    pass


def test_a_language_with_one_successor_a_token_is_accepted_almost_whole(data, tmp_path):
    config = config_of(
        data, tmp_path, steps=150, anchors_per_sequence=12, frequent_tokens=0, learning_rate=1e-2, warm_up_steps=10,
        validate_every=1000, checkpoint_every=1000,
    )  # fmt: skip
    validation = fit_drafter(config, new_drafter(data)).validation
    assert validation.greedy.tau > 7.9
    assert validation.sampled.tau > 7.5


def test_every_weight_but_the_targets_is_trained(data, tmp_path):
    drafter, before = new_drafter(data), new_drafter(data)
    fit_drafter(config_of(data, tmp_path), drafter)
    for (name, ours), theirs in zip(drafter.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(ours, theirs) == (name in ("embed_tokens.weight", "lm_head.weight")), name


def test_a_killed_and_resumed_run_ends_bit_equal_to_an_uninterrupted_one(data, tmp_path):
    def kill_after_three(what: str, done: int, total: int) -> None:
        if done == 3:
            raise Interrupted

    whole, resumed = new_drafter(data), new_drafter(data)
    fit_drafter(config_of(data, tmp_path / "whole"), whole)
    config = config_of(data, tmp_path / "resumed")
    with pytest.raises(Interrupted):
        fit_drafter(config, new_drafter(data), kill_after_three)
    fit_drafter(config, resumed)
    for (name, ours), theirs in zip(resumed.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
