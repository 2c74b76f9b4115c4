"""The TensorRT target's own code on a fake GPU: the same decisions as the OpenVINO target's, and what it refuses.

The plan is run by ONNX Runtime, so these tests say nothing of TensorRT's numbers or speed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from dspark.engines.contract import TargetEngine, TargetResult
from dspark.engines.engine_json import ENGINE_JSON
from dspark.engines.loading import load_target, read_target_limits
from dspark.engines.tensorrt_record import TARGET_PLAN
from dspark.engines.tensorrt_target import TensorRtTarget
from dspark.errors import ConfigurationError, EngineError
from fake_gpu import FakeGpu
from tiny_targets import CONTEXT, GAMMA, Request, engine, random_tokens, step_of
from tiny_tensorrt import target_folder

TOLERANCE = 1e-4                     # fp32, sums in another order
HALF_TOLERANCE = 0.02                # fp16 against fp32, log-probabilities and features; measured 0.003 and 0.005


@pytest.fixture(autouse=True, scope="module")
def exported() -> None:
    """torch, which looks for CUDA's packages, has done its part before the fake ones are there."""
    target_folder("fp32")
    target_folder("fp16")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu().install(monkeypatch)


def conversation(target: TargetEngine, seed: int = 5) -> list[TargetResult]:
    """Prefill, verification of ragged blocks, rollback, a chunk beside verifications, release, long prompts."""
    random = np.random.default_rng(seed)
    texts = {slot: random_tokens(count, slot) for slot, count in ((0, 40), (3, 7), (5, 150))}
    results = [target.step(step_of([Request(slot, 0, text[:-1]) for slot, text in texts.items()]))]
    ends = {slot: len(text) - 1 for slot, text in texts.items()}
    for number in range(6):
        chosen = {0: (0, 3, 5), 1: (5,), 2: (3, 5), 3: (0, 3), 4: (0, 3, 5), 5: (3,)}[number]
        requests = []
        for slot in chosen:
            drafts = random_tokens(int(random.integers(0, GAMMA + 1)), 10 * number + slot)
            uniforms = random.random(GAMMA + 1)
            keys = random.integers(-(2**31), 2**31, GAMMA + 1).tolist() if number == 4 else ()
            temperature = 0.8 * (number % 2)
            requests.append(
                Request(
                    slot, ends[slot], random_tokens(1, 7), drafts, temperature=temperature, uniforms=uniforms,
                    repetition_penalty=1.2, noise_keys=keys, features=slot != 3,
                )
            )
        if number == 3:
            requests.append(Request(1, 0, random_tokens(100, 1), samples=False))
        results.append(target.step(step_of(requests)))
        for r, slot in enumerate(chosen):
            ends[slot] += 1 + int(results[-1].accepted[r])
    results.append(target.step(step_of([Request(1, 100, random_tokens(3, 2))], released=[0, 3])))
    results.append(target.step(step_of([Request(0, 0, random_tokens(130, 3), random_tokens(GAMMA, 4))])))
    return results


def assert_same(given: list[TargetResult], expected: list[TargetResult], tolerance: float) -> None:
    for some, other in zip(given, expected, strict=True):
        np.testing.assert_array_equal(some.accepted, other.accepted)
        np.testing.assert_array_equal(some.next_tokens, other.next_tokens)
        np.testing.assert_array_equal(some.feature_counts, other.feature_counts)
        np.testing.assert_allclose(some.features, other.features, atol=tolerance)
        np.testing.assert_allclose(some.log_probs, other.log_probs, atol=tolerance)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_it_decides_what_the_openvino_target_decides(gpu: FakeGpu, cuda_graphs: bool) -> None:
    assert_same(
        conversation(TensorRtTarget(target_folder(), cuda_graphs)), conversation(engine("qwen3")), TOLERANCE
    )
    assert ("cudaGraphLaunch" in gpu.calls) == cuda_graphs


def test_the_half_precision_graph_is_close_to_the_fp32_engine(gpu: FakeGpu) -> None:
    half, full = load_target(target_folder("fp16")), engine("qwen3")
    prompt = random_tokens(200, 9)
    for start, stop in ((0, 130), (130, 131), (131, 136), (136, 200)):
        step = step_of([Request(2, start, prompt[start:stop])])
        given, expected = half.step(step), full.step(step)
        np.testing.assert_allclose(given.features, expected.features, atol=HALF_TOLERANCE)
        np.testing.assert_allclose(given.log_probs, expected.log_probs, atol=HALF_TOLERANCE)


def test_idle_slots_between_the_requests_keep_what_they_hold(gpu: FakeGpu) -> None:
    target, prompt = TensorRtTarget(target_folder()), random_tokens(30, 1)
    target.step(step_of([Request(4, 0, prompt[:-1], samples=False)]))
    for position in range(5):
        target.step(step_of([Request(slot, position, [position + slot]) for slot in (2, 6)]))
    after = target.step(step_of([Request(4, 29, prompt[-1:])]))
    alone = target.step(step_of([Request(7, 0, prompt)]))
    np.testing.assert_allclose(after.log_probs[0, 0], alone.log_probs[0, 0], atol=TOLERANCE)


def test_a_slot_can_be_filled_to_the_last_token(gpu: FakeGpu) -> None:
    target = TensorRtTarget(target_folder())
    target.step(step_of([Request(7, 0, random_tokens(CONTEXT - 1), samples=False)]))
    target.step(step_of([Request(slot, 0, [slot]) for slot in range(7)]))
    target.step(step_of([Request(7, CONTEXT - 1, [1], random_tokens(GAMMA, 1))]))
    with pytest.raises(EngineError, match="more than the context"):
        target.step(step_of([Request(7, CONTEXT, [1], random_tokens(GAMMA, 1))]))


def test_everything_it_allocates_is_given_back(gpu: FakeGpu) -> None:
    target = TensorRtTarget(target_folder(), cuda_graphs=True)
    assert gpu.memory
    target.close()
    assert not gpu.memory
    assert gpu.calls.count("cudaGraphExecDestroy") == gpu.calls.count("cudaGraphInstantiate") > 0


def test_admission_reserves_a_whole_slot_for_every_sequence() -> None:
    limits = read_target_limits(target_folder())
    assert limits.kv_blocks == limits.max_slots
    assert limits.kv_block_size == limits.max_context + limits.spare_tokens


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": "11.5.0.1"}, "built by TensorRT 11.4.0.106, this is 11.5.0.1"),
        ({"version": "10.13.3.9"}, r"TensorRT 10\.13\.3\.9 is installed; a TensorRT engine needs 10\.15 to 11\.x"),
        ({"capability": (9, 0)}, r"built for compute capability 8.9 .*this GPU .* has 9.0"),
        ({"free_bytes": 300 << 20}, r"needs .* GiB of GPU memory .*but 0.3 GiB are free .*fewer slots"),
        ({"devices": 0}, "CUDA sees none"),
        ({"fails": {"cudaGetDeviceCount"}}, "CUDA sees none"),
    ],
)
def test_what_cannot_be_served_is_refused_before_serving(
    monkeypatch: pytest.MonkeyPatch, change: dict, complaint: str
) -> None:
    gpu = dataclasses.replace(FakeGpu(), **change).install(monkeypatch)
    with pytest.raises(ConfigurationError, match=complaint):
        load_target(target_folder())
    assert "cudaMalloc" not in gpu.calls


@pytest.mark.parametrize(("missing", "package"), [("tensorrt", "tensorrt"), ("cuda.bindings", "cuda-python")])
def test_a_missing_package_is_named(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, missing: str, package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(ConfigurationError, match=f"{package}.* cannot be imported"):
        load_target(target_folder())


def with_plan(folder: Path, plan: bytes) -> None:
    (folder / TARGET_PLAN).write_bytes(plan)


def with_another_capacity(folder: Path) -> None:
    values = json.loads((folder / ENGINE_JSON).read_text())
    values["capacity"] += 64
    (folder / ENGINE_JSON).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: with_plan(folder, b"\x00"), "cannot load"),
        (lambda folder: (folder / TARGET_PLAN).unlink(), "cannot be read"),
        (with_another_capacity, "expected"),
    ],
)
def test_a_plan_that_is_not_what_engine_json_says_is_refused(gpu: FakeGpu, tmp_path: Path, spoil, complaint) -> None:
    folder = shutil.copytree(target_folder(), tmp_path / "target", ignore=shutil.ignore_patterns("onnx"))
    spoil(folder)
    with pytest.raises(ConfigurationError, match=complaint):
        load_target(folder)


def test_a_failure_of_cuda_is_an_engine_error(gpu: FakeGpu) -> None:
    target = TensorRtTarget(target_folder())
    gpu.fails.add("cudaMemcpyAsync")
    with pytest.raises(EngineError, match="CUDA could not copy in"):
        target.step(step_of([Request(0, 0, [1, 2])]))
