"""What keeps a TensorRT-LLM engine from serving, and how steps are cut into runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from dspark.engines.loading import load_drafter, load_target
from dspark.engines.tensorrt_llm_drafter import TensorRtLlmDrafter
from dspark.engines.tensorrt_llm_packing import Feed, Packed, Segment, attention_feeds, block_offsets, pack
from dspark.engines.tensorrt_llm_session import TensorRtLlmSession
from dspark.engines.tensorrt_llm_target import TensorRtLlmTarget
from dspark.engines.tensorrt_llm_tensors import PagedShape
from dspark.engines.tensorrt_llm_version import require_tensorrt_llm
from dspark.errors import ConfigurationError, EngineError
from dspark_build.export import tensorrt_llm_sizes
from dspark_build.export.tensorrt_llm_build import build_tensorrt_llm_target
from dspark_build.export.tensorrt_llm_sizes import TensorRtLlmSizes
from fake_tensorrt_llm import FakeTensorRtLlm
from tiny_drafters import Case
from tiny_drafters import checkpoints as drafter_checkpoints
from tiny_targets import checkpoints
from tiny_tensorrt_llm import SIZES, build_drafter, build_target, install

SHAPE = PagedShape(
    layers=3, kv_heads=2, head_size=8, dtype="float16", block_size=4, blocks=9, capacity=14, max_tokens=8,
    max_sequences=4, max_logit_rows=8,
)
CONTAINER = "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3 has 1.1.0"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRtLlm:
    return install(monkeypatch)


@pytest.fixture
def folder(fake: FakeTensorRtLlm, tmp_path: Path) -> Path:
    return build_target(checkpoints(), tmp_path / "target")


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0rc1", "1.2.1"])
def test_the_line_that_builds_engines_is_accepted(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert require_tensorrt_llm() == version


@pytest.mark.parametrize(
    ("version", "message"),
    [("1.3.0", "no TensorRT engine builder any more"), ("1.4.0rc2", "builder"), ("2.0", "builder"), ("0.21.0", "old")],
)
def test_another_line_is_refused_with_what_is_needed_and_where_it_is(monkeypatch, version, message):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(ConfigurationError, match=f"TensorRT-LLM {version}.*{message}.*1.0 up to 1.2.1.*{CONTAINER}"):
        require_tensorrt_llm()


def test_without_tensorrt_llm_a_build_says_what_is_needed_before_it_reads_weights(tmp_path):
    with pytest.raises(ConfigurationError, match=f"not installed: TensorRT-LLM 1.0 up to 1.2.1.*{CONTAINER}"):
        build_tensorrt_llm_target(tmp_path, tmp_path, "bf16", tmp_path / "out")


def test_a_precision_that_fused_attention_does_not_take_is_refused(monkeypatch, tmp_path):
    FakeTensorRtLlm().install(monkeypatch)
    target, drafter = checkpoints()
    with pytest.raises(ConfigurationError, match="precision is 'int8'; expected one of fp16, bf16"):
        build_tensorrt_llm_target(target, drafter, "int8", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_heads_without_a_fused_kernel_are_refused(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(tensorrt_llm_sizes, "FUSED_HEAD_SIZES", (64, 128))
    with pytest.raises(ConfigurationError, match=r"heads of 16 .* only 64 and 128; .* --engine tensorrt"):
        build_target(checkpoints(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sizes_without_a_block_are_refused():
    with pytest.raises(ConfigurationError, match="KV tokens at least one block"):
        TensorRtLlmSizes(kv_tokens=63)


def test_engines_are_loaded_by_what_engine_json_names(fake, folder, tmp_path):
    assert isinstance(load_target(folder), TensorRtLlmTarget)
    drafter = build_drafter(drafter_checkpoints(Case()), tmp_path / "drafter")
    assert isinstance(load_drafter(drafter), TensorRtLlmDrafter)


def other_version(fake: FakeTensorRtLlm, folder: Path) -> None:
    fake.version = "1.2.1"


def other_gpu(fake: FakeTensorRtLlm, folder: Path) -> None:
    fake.gpu.capability = (9, 0)


def no_plan(fake: FakeTensorRtLlm, folder: Path) -> None:
    (folder / "engine.plan").unlink()


def full_gpu(fake: FakeTensorRtLlm, folder: Path) -> None:
    fake.gpu.free_bytes = 600 << 20
    change_record(folder, "shape", blocks=1 << 20)


def no_gpu(fake: FakeTensorRtLlm, folder: Path) -> None:
    fake.gpu.devices = 0


def corrupt_plan(fake: FakeTensorRtLlm, folder: Path) -> None:
    (folder / "engine.plan").write_bytes(b"another 0")


def other_inputs(fake: FakeTensorRtLlm, folder: Path) -> None:
    del fake.networks[0].inputs["feature_rows"]


def other_types(fake: FakeTensorRtLlm, folder: Path) -> None:
    fake.networks[0].inputs["input_ids"].dtype = "int64"


def change_record(folder: Path, part: str, **values: object) -> None:
    path = folder / "engine.json"
    record = json.loads(path.read_text())
    record[part].update(values)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_version, r"built by TensorRT-LLM 1\.1\.0, this is 1\.2\.1"),
        (other_gpu, r"compute capability 8\.9 .* has 9\.0"),
        (no_plan, "engine.plan does not exist"),
        (full_gpu, "GiB of GPU memory .*KV caches"),
        (no_gpu, "needs an NVIDIA GPU"),
        (corrupt_plan, "cannot load"),
        (other_inputs, r"other inputs and outputs than expected \(feature_rows\)"),
        (other_types, "input_ids is int64, expected int32"),
    ],
)
def test_an_engine_that_cannot_serve_is_refused_at_start(
    fake, folder, spoil: Callable[[FakeTensorRtLlm, Path], None], message: str
):
    spoil(fake, folder)
    with pytest.raises(ConfigurationError, match=message):
        TensorRtLlmTarget(folder)


def test_closing_gives_all_gpu_memory_back(fake, folder):
    engine = TensorRtLlmTarget(folder)
    assert sum(memory.nbytes for memory in fake.gpu.memory.values()) >= engine.record.shape.pool_bytes
    engine.close()
    assert not fake.gpu.memory


def test_a_run_with_tensors_that_disagree_never_reaches_the_gpu(fake, folder):
    engine = TensorRtLlmTarget(folder)
    session, shape = engine._session, engine.record.shape
    assert isinstance(session, TensorRtLlmSession)
    counts = np.array([2], np.int32)
    attention = attention_feeds(shape, session.pool, 0 * counts, counts, [np.zeros(1, np.int32)])
    rows = Feed("logit_rows", np.zeros(1)), Feed("feature_rows", np.zeros(1))
    with pytest.raises(EngineError, match="every input"):
        session.run([*rows, *attention])
    too_many = np.zeros(SIZES.max_tokens + 1)
    with pytest.raises(EngineError, match="more than the engine was built for"):
        session.run([Feed("input_ids", too_many), *rows, *attention])
    torn = [dataclasses.replace(f, array=np.zeros(3)) if f.name == "context_lengths" else f for f in attention]
    with pytest.raises(EngineError, match=r"context_lengths is \(3,\)|is \(1,\)"):
        session.run([Feed("input_ids", np.zeros(2)), *rows, *torn])


def test_requests_share_runs_and_are_cut_where_a_run_is_full():
    assert list(pack([Segment(0, 0, 3), Segment(1, 0, 9), Segment(2, 0, 2)], 8)) == [
        Packed((0, 1), (0, 0), (3, 5)),
        Packed((1, 2), (5, 0), (4, 2)),
    ]


def test_a_block_joins_its_context_or_runs_whole_in_the_next_run():
    fits = [Segment(0, 0, 4), Segment(0, 4, 3, whole=True)]
    assert list(pack(fits, 8)) == [Packed((0,), (0,), (7,))]
    assert list(pack(fits, 6)) == [Packed((0,), (0,), (4,)), Packed((0,), (4,), (3,))]
    with pytest.raises(EngineError, match="3 rows must run together, but the engine takes 2"):
        list(pack(fits, 2))


def test_the_plugin_is_given_lengths_with_the_new_rows_and_their_number():
    feeds = {
        feed.name: feed.array
        for feed in attention_feeds(
            SHAPE, 4096, np.array([5, 0], np.int32), np.array([2, 3], np.int32),
            [np.array([7, 2], np.int32), np.array([4], np.int32)],
        )
    }
    for name in ("sequence_length", "host_past_key_value_lengths"):
        np.testing.assert_array_equal(feeds[name], [7, 3])
    for name in ("context_lengths", "host_context_lengths"):
        np.testing.assert_array_equal(feeds[name], [2, 3])
    np.testing.assert_array_equal(feeds["host_request_types"], [0, 0])
    np.testing.assert_array_equal(feeds["host_kv_cache_pool_pointers"], [[4096, 0]])
    np.testing.assert_array_equal(feeds["host_kv_cache_pool_mapping"], [[0, 0], [0, 1], [0, 2]])
    np.testing.assert_array_equal(feeds["host_max_attention_window_sizes"], [14, 14, 14])
    assert feeds["cache_indirection"].shape == (2, 1, 14)


def test_a_block_of_k_lies_two_layers_times_its_number_into_the_pool_and_v_right_after():
    offsets = block_offsets(SHAPE, [np.array([7, 2], np.int32)])
    np.testing.assert_array_equal(offsets, [[[[42, 12, 0, 0], [43, 13, 0, 0]]]])
    assert SHAPE.pool_bytes == 9 * 3 * 2 * (4 * 2 * 8 * 2)
