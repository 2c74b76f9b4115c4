"""Building target engines: what is recorded, what is refused."""

import json

import pytest
import torch
from dspark.engines.engine_json import TargetRecord, read_record
from dspark.errors import ConfigurationError
from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.export import target as export
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.tiny import make_tiny_target
from safetensors.torch import load_file, save_file

SIZES = TargetSizes(max_context=1000, max_slots=2, kv_tokens=256)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    target = make_tiny_target(root / "target", max_positions=128)
    drafter = initialise_drafter(target, target_layer_ids=[0], start_layers=[1], block_size=3, mask_token_id=319)
    return target, save_drafter_checkpoint(drafter, root / "drafter", target)


def test_the_record_says_what_the_engine_was_built_from(checkpoints, tmp_path):
    target, drafter = checkpoints
    build_target(target, drafter, "fp32", tmp_path / "engine", SIZES)
    record = read_record(tmp_path / "engine", TargetRecord)
    assert record.facts.checkpoint_hash == checkpoint_hash(target)
    assert record.facts.drafter_hash == checkpoint_hash(drafter)
    assert record.facts.precision == "fp32" and "openvino" in record.facts.tools
    assert record.limits.max_context == 128          # what the model was trained for
    assert record.limits.max_draft_tokens == record.limits.spare_tokens == 3
    assert record.limits.kv_blocks * record.limits.kv_block_size == 256
    assert record.tap_ids == (0,) and record.exact
    assert sorted(path.name for path in (tmp_path / "engine").iterdir()) == ["engine.bin", "engine.json", "engine.xml"]
    assert not (tmp_path / "engine.partial").exists()


def test_an_engine_that_nothing_makes_exact_is_refused_unless_allowed(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "exact_settings", lambda folder, record: (record, {"attention padding": 0.01}))
    with pytest.raises(ConfigurationError, match=r"attention padding: 0\.01.*--allow-inexact"):
        build_target(*checkpoints, "fp32", tmp_path / "engine", SIZES)
    assert not (tmp_path / "engine").exists()
    assert not build_target(*checkpoints, "fp32", tmp_path / "engine", SIZES, allow_inexact=True).exact


def drafter_with(source, folder, tensors=None, **values):
    folder.mkdir()
    config = json.loads((source / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))
    save_file(load_file(source / "model.safetensors") | (tensors or {}), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target_layer_ids": [2]}, r"target_layer_ids \[2\] must lie between -1 and 1"),
        ({"target_layer_ids": []}, "target_layer_ids"),
        ({"target_layer_ids": None}, "target_layer_ids"),
        ({"hidden_size": 32}, "hidden_size is 32, but the target's is 64"),
        ({"vocab_size": 100}, "vocab_size is 100, but the target's is 320"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"tensors": {"fc.weight": torch.zeros(64, 128)}}, r"fc\.weight has shape \[64, 128\], expected \[64, 64\]"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(checkpoints, tmp_path, values, message):
    target, drafter = checkpoints
    with pytest.raises(ConfigurationError, match=message):
        build_target(target, drafter_with(drafter, tmp_path / "other", **values), "fp32", tmp_path / "engine", SIZES)


@pytest.mark.parametrize(
    ("precision", "sizes", "message"),
    [
        ("fp8", SIZES, "precision is 'fp8'; expected one of fp32, int8"),
        ("fp32", TargetSizes(kv_tokens=31), "KV tokens must be at least"),
        ("fp32", TargetSizes(max_slots=0), "must be at least"),
    ],
)
def test_impossible_sizes_are_refused(checkpoints, tmp_path, precision, sizes, message):
    with pytest.raises(ConfigurationError, match=message):
        build_target(*checkpoints, precision, tmp_path / "engine", sizes)
