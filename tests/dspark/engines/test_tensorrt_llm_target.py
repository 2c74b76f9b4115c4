"""The TensorRT-LLM target on a fake TensorRT-LLM against the torch definition; no real one has run it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dspark.engines.tensorrt_llm_target import TensorRtLlmTarget
from dspark.errors import EngineError
from dspark_build.drafters import load_feature_head, read_drafter_config
from dspark_build.models.target import Target
from fake_tensorrt_llm import FakeTensorRtLlm
from tiny_targets import GAMMA, HIDDEN, TAPS, VOCABULARY, Request, checkpoints, features_of, random_tokens, step_of
from tiny_tensorrt_llm import SIZES, build_target, install, load_target

FLAVOURS = ("llama", "qwen3")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRtLlm:
    return install(monkeypatch)


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(fake: FakeTensorRtLlm, flavour: str, tmp_path) -> TensorRtLlmTarget:
    return load_target(build_target(checkpoints(flavour), tmp_path / "target"))


def reference(flavour: str, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """log p [S, V] and features [S, d] of a whole sequence, by the torch definition."""
    target, drafter = checkpoints(flavour)
    model = Target.load(target)
    head = load_feature_head(drafter, read_drafter_config(drafter, target))
    with torch.no_grad():
        output = model.forward_dense(torch.tensor([tokens]))
        logits = model.lm_head(output.last_hidden)[0].log_softmax(-1)
        return logits.numpy(), head(output.tapped(head.tap_ids))[0].numpy()


def test_a_prompt_longer_than_a_run_gives_the_definitions_token_log_probability_and_features(engine, flavour):
    prompt = random_tokens(2 * SIZES.max_tokens + 3)
    log_probs, features = reference(flavour, prompt)
    result = engine.step(step_of([Request(1, 0, prompt)]))
    assert result.next_tokens[0] == log_probs[-1].argmax()
    assert result.log_probs[0, 0] == pytest.approx(log_probs[-1].max(), abs=1e-4)
    np.testing.assert_allclose(result.features, features, atol=1e-4)


def test_requests_of_one_step_do_not_see_each_other(engine, flavour):
    prompts = {0: random_tokens(3, 1), 3: random_tokens(9, 2), 2: random_tokens(5, 3)}
    result = engine.step(step_of([Request(slot, 0, prompt) for slot, prompt in prompts.items()]))
    for r, prompt in enumerate(prompts.values()):
        log_probs, features = reference(flavour, prompt)
        assert result.next_tokens[r] == log_probs[-1].argmax()
        np.testing.assert_allclose(features_of(result, r), features, atol=1e-4)


def test_greedy_drafts_are_accepted_up_to_the_first_that_differs(engine, flavour):
    prompt = random_tokens(6)
    own = prompt[:]
    for _ in range(GAMMA):
        own.append(int(reference(flavour, own)[0][-1].argmax()))
    first = engine.step(step_of([Request(0, 0, prompt)])).next_tokens[0]
    wrong = (own[-1] + 1) % VOCABULARY
    drafts = [*own[len(prompt) + 1 :][:-1], wrong]
    result = engine.step(step_of([Request(0, len(prompt), [int(first)], drafts)]))
    assert result.accepted[0] == len(drafts) - 1
    assert result.next_tokens[0] == own[-1]


def test_a_step_that_starts_earlier_rolls_the_slot_back(engine, flavour):
    tokens = random_tokens(12)
    engine.step(step_of([Request(2, 0, tokens)]))
    changed = [*tokens[:5], *random_tokens(4, 9)]
    result = engine.step(step_of([Request(2, 5, changed[5:])]))
    log_probs, features = reference(flavour, changed)
    assert result.next_tokens[0] == log_probs[-1].argmax()
    np.testing.assert_allclose(result.features, features[5:], atol=1e-4)


def test_chunks_that_do_not_sample_leave_only_features(engine, flavour):
    tokens = random_tokens(9)
    first = engine.step(step_of([Request(0, 0, tokens[:4], samples=False)]))
    assert first.next_tokens[0] == -1
    second = engine.step(step_of([Request(0, 4, tokens[4:], features=False)]))
    assert second.next_tokens[0] == reference(flavour, tokens)[0][-1].argmax()
    assert second.features.shape == (0, HIDDEN)


def test_released_slots_return_their_blocks_and_others_may_take_them(engine, flavour):
    everything = engine.free_blocks
    engine.step(step_of([Request(0, 0, random_tokens(20, 1)), Request(1, 0, random_tokens(30, 2))]))
    assert engine.free_blocks == everything - 5 - 8
    engine.step(step_of([], released=[0]))
    assert engine.free_blocks == everything - 8
    tokens = random_tokens(33, 3)
    result = engine.step(step_of([Request(3, 0, tokens)], released=[1]))
    assert result.next_tokens[0] == reference(flavour, tokens)[0][-1].argmax()
    assert engine.free_blocks == everything - 9


def test_an_exhausted_pool_refuses_the_step_and_leaves_the_slots(engine, flavour):
    tokens = random_tokens(50, 1)
    engine.step(step_of([Request(0, 0, tokens)]))
    with pytest.raises(EngineError, match="KV pool is exhausted"):
        engine.step(step_of([Request(1, 0, random_tokens(60))]))
    result = engine.step(step_of([Request(0, 50, [7])]))
    assert result.next_tokens[0] == reference(flavour, [*tokens, 7])[0][-1].argmax()


def test_the_network_is_described_with_the_plugin_in_packed_paged_context_mode(engine, fake, flavour):
    network = fake.networks[0]
    assert vars(network.plugin_config) == {
        "gpt_attention_plugin": "float32",
        "gemm_plugin": None,
        "context_fmha": True,
        "remove_input_padding": True,
        "paged_kv_cache": True,
        "tokens_per_block": SIZES.block_size,
        "use_paged_context_fmha": True,
        "use_fp8_context_fmha": False,
    }
    assert list(network.outputs) == ["logits", "features"]
    assert network.parameters["fc.weight"].shape == (HIDDEN, len(TAPS) * HIDDEN)
    attention = fake.attentions[-1]
    assert (attention["layer_idx"], attention["num_heads"], attention["num_kv_heads"]) == (1, 4, 2)
    assert attention["mask_type"] == "causal"
    assert ("layers.0.self_attn.q_norm.weight" in network.parameters) == (flavour == "qwen3")


def test_every_input_has_one_range_for_each_axis_and_the_block_table_covers_a_whole_sequence(engine, fake, flavour):
    inputs = fake.networks[0].inputs
    ranges = {axis: r for tensor in inputs.values() for axis, r in tensor.dim_range.items()}
    for tensor in inputs.values():
        assert all(ranges[axis] == r for axis, r in tensor.dim_range.items())
    most = SIZES.max_tokens
    assert (ranges["T"], ranges["R"], ranges["N"]) == ([[1, most, most]], [[1, 4, 4]], [[1, most, most]])
    blocks = -(-(SIZES.max_context + GAMMA) // SIZES.block_size)
    assert inputs["kv_cache_block_offsets"].shape == [1, -1, 2, blocks]
