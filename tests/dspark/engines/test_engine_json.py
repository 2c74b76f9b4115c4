"""engine.json: what is read back, and what is refused."""

import json

import pytest
from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.engine_json import (
    ENGINE_JSON,
    BuildFacts,
    TargetRecord,
    read_limits,
    read_record,
    write_record,
)
from dspark.engines.loading import load_drafter, load_target, read_drafter_limits, read_target_limits
from dspark.engines.rows import ATTENTION_PADDING, RowRules
from dspark.errors import ConfigurationError

RECORD = TargetRecord(
    limits=TargetLimits(320, 64, 256, 6, 32, 20, 4, 4),
    layers=2,
    kv_heads=2,
    head_size=16,
    tap_ids=(-1, 1),
    rows=RowRules(ATTENTION_PADDING, 2, 2, 64),
    quantise_activations=True,
    exact=True,
    facts=BuildFacts("tiny", "abc", "def", "int8", {"openvino": "1"}, "a CPU"),
)


@pytest.fixture
def folder(tmp_path):
    write_record(tmp_path, RECORD)
    return tmp_path


def change(folder, **values):
    path = folder / ENGINE_JSON
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_record_is_read_back_as_written(folder):
    assert read_record(folder, TargetRecord) == RECORD
    assert read_target_limits(folder) == read_limits(folder, TargetLimits) == RECORD.limits


@pytest.mark.parametrize("read", [load_target, load_drafter, read_target_limits, read_drafter_limits])
def test_a_missing_file_says_what_to_do(tmp_path, read):
    with pytest.raises(ConfigurationError, match=r"engine\.json does not exist.*dspark build"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2, "engine": "openvino-target"}', '{"format": 1}'])
def test_a_corrupt_or_foreign_file_is_refused(tmp_path, text):
    (tmp_path / ENGINE_JSON).write_text(text)
    with pytest.raises(ConfigurationError, match=r"engine\.json.*dspark build"):
        load_target(tmp_path)


def test_an_unknown_engine_is_named(folder):
    change(folder, engine="abacus")
    for load in (load_target, load_drafter):
        with pytest.raises(ConfigurationError, match="'abacus' is not a"):
            load(folder)


def test_a_target_is_no_drafter(folder):
    with pytest.raises(ConfigurationError, match="'openvino-target' is not a drafter engine"):
        load_drafter(folder)
    with pytest.raises(ConfigurationError, match="limits: feature_size is missing"):
        read_limits(folder, DrafterLimits)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": "two"}, "layers must be int, not 'two'"),
        ({"layers": True}, "layers must be int, not True"),
        ({"limits": None}, "limits must be an object"),
        ({"tap_ids": 3}, "tap_ids must be a list"),
        ({"rows": {}}, "rows: padding is missing"),
        ({"exact": 1}, "exact must be bool"),
    ],
)
def test_a_wrong_field_is_named(folder, values, message):
    change(folder, **values)
    with pytest.raises(ConfigurationError, match=message):
        read_record(folder, TargetRecord)


def test_an_engine_of_another_openvino_is_refused(folder):
    with pytest.raises(ConfigurationError, match="built with openvino 1, this is"):
        load_target(folder)
