"""The cache stage: states are those of the target, made once, and never more than the disk holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from dspark.errors import ConfigurationError
from dspark_build.models.target import Target
from dspark_build.tiny import make_tiny_target
from dspark_build.training import CacheConfig, cache_states, plan_cache
from dspark_build.training.cache import state_source
from dspark_build.training.data import load_data
from dspark_build.training.responses import Responses, write_responses
from dspark_build.training.states import manifest_path, read_states


@pytest.fixture
def config(tmp_path) -> CacheConfig:
    checkpoint = make_tiny_target(tmp_path / "target", layers=3)
    random = np.random.default_rng(0)
    for number in range(2):
        lengths = np.array([9, 30, 17, 12], np.int32)
        write_responses(
            tmp_path / "responses",
            number,
            Responses(
                tokens=random.integers(3, 320, lengths.sum()).astype(np.int32),
                lengths=lengths,
                prompt_lengths=np.array([4, 8, 3, 5], np.int32),
                temperatures=np.zeros(4, np.float32),
                samples=np.zeros(4, np.int32),
                ids=np.array([f"{number}/{i}" for i in range(4)]),
                domains=np.array(["chat"] * 4),
            ),
        )
    return CacheConfig(checkpoint, tmp_path / "responses", tmp_path / "states", tap_ids=(-1, 0, 2), batch_tokens=40)


def test_states_are_the_targets_own(config):
    result = cache_states(config)
    assert result.rows == 136
    target = Target.load(config.target)
    data = load_data(config.responses, config.states, state_source(config), 0.0)
    assert len(data.train) == 8
    for sequence in data.train:
        with torch.no_grad():
            output = target.forward_dense(torch.from_numpy(sequence.tokens).long()[None])
            logits = target.lm_head(output.last_hidden)[0]
        taps = output.tapped(config.tap_ids)[0]
        np.testing.assert_allclose(sequence.context(len(sequence.tokens)), taps, atol=1e-2, rtol=1e-3)
        np.testing.assert_allclose(sequence.last, output.last_hidden[0], atol=1e-2, rtol=1e-3)
        predicting = slice(sequence.prompt_length - 1, len(sequence.tokens) - 1)
        np.testing.assert_allclose(sequence.log_z[predicting], logits.logsumexp(-1)[predicting], rtol=1e-5)
        assert np.isnan(sequence.log_z[: sequence.prompt_length - 1]).all()


def test_the_size_is_known_before_and_right(config):
    plan = plan_cache(config)
    cache_states(config)
    on_disk = sum(path.stat().st_size for path in config.states.glob("*.npy"))
    assert plan.rows == 136
    assert 0 <= on_disk - plan.bytes < 6 * 256       # the .npy headers


def test_a_disk_without_room_is_refused_before_anything_is_written(config, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: FullDisk())
    with pytest.raises(ConfigurationError, match=r"136 tokens take .* GB, but .* has 0\.0 GB free"):
        cache_states(config)
    assert not list(config.states.glob("*.npy"))


class FullDisk:
    free = 1000


def test_finished_shards_are_kept_and_an_unfinished_one_is_made_again(config):
    cache_states(config)
    first = read_states(config.states, 0, 68, state_source(config)).taps
    written = manifest_path(config.states, 0).stat().st_mtime_ns
    manifest_path(config.states, 1).unlink()
    assert plan_cache(config).shards == (1,)
    assert cache_states(config).rows == 68
    assert manifest_path(config.states, 0).stat().st_mtime_ns == written
    assert np.array_equal(first, read_states(config.states, 0, 68, state_source(config)).taps)
    assert cache_states(config).rows == 0


def test_nothing_to_cache_and_impossible_taps_are_named(config, tmp_path):
    empty = tmp_path / "empty"
    with pytest.raises(ConfigurationError, match="run the generate stage first"):
        cache_states(CacheConfig(config.target, empty, config.states, (0,)))
    with pytest.raises(ConfigurationError, match="tap 3 must lie between -1 and 2"):
        cache_states(CacheConfig(config.target, config.responses, config.states, (0, 3)))


def test_a_truncated_array_is_named(config):
    cache_states(config)
    path = Path(config.states / "taps-00000.npy")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ConfigurationError, match=r"taps-00000\.npy is damaged; delete"):
        load_data(config.responses, config.states, state_source(config), 0.0)
