"""Drafter checkpoints: the published names and fields, and a refusal with a name for everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dspark.errors import ConfigurationError
from dspark_build.drafters import (
    find_mask_token,
    initialise_drafter,
    load_drafter_checkpoint,
    reduce_vocabulary,
    save_drafter_checkpoint,
)
from dspark_build.models.drafter import Drafter
from dspark_build.models.target import Target
from dspark_build.tiny import make_tiny_target
from safetensors.torch import load_file, save_file

LAYER_NAMES = {
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
}
PUBLISHED_NAMES = {
    "embed_tokens.weight",
    "lm_head.weight",
    "fc.weight",
    "hidden_norm.weight",
    "norm.weight",
    "markov_head.markov_w1.weight",
    "markov_head.markov_w2.weight",
    "confidence_head.proj.weight",
    "confidence_head.proj.bias",
} | {f"layers.{layer}.{name}" for layer in range(2) for name in LAYER_NAMES}
HEAD_NAMES = {
    "vanilla": set(),
    "gated": {"markov_head.gate_proj.weight", "markov_head.gate_proj.bias"},
    "rnn": {"markov_head.joint_proj.weight", "markov_head.joint_proj.bias"},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"), "qwen3", layers=4)


def fresh_drafter(target: Path, head: str = "vanilla", seed: int = 0) -> Drafter:
    return initialise_drafter(
        target,
        target_layer_ids=[0, 3],
        start_layers=[1, 2],
        block_size=5,
        markov_head_type=head,
        markov_rank=16,
        mask_token_id=300,
        seed=seed,
    )


@pytest.fixture
def folder(target: Path, tmp_path: Path) -> Path:
    return save_drafter_checkpoint(fresh_drafter(target), tmp_path / "drafter", target, embeddings=True)


def change_config(folder: Path, **fields: Any) -> None:
    values = json.loads((folder / "config.json").read_text()) | fields
    kept = {name: value for name, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("head", HEAD_NAMES)
def test_a_drafter_is_written_with_the_published_names_and_reads_back(head: str, target: Path, tmp_path: Path) -> None:
    drafter = fresh_drafter(target, head)
    folder = save_drafter_checkpoint(drafter, tmp_path, target, embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == PUBLISHED_NAMES | HEAD_NAMES[head]
    assert tensors["markov_head.markov_w2.weight"].shape == (320, 16)
    assert tensors["confidence_head.proj.weight"].shape == (1, 64 + 16)
    fields = json.loads((folder / "config.json").read_text())
    assert fields["architectures"] == ["Qwen3DSparkModel"]
    assert (fields["num_hidden_layers"], fields["num_target_layers"], fields["target_layer_ids"]) == (2, 4, [0, 3])
    assert (fields["block_size"], fields["mask_token_id"], fields["num_anchors"]) == (5, 300, 512)
    assert (fields["markov_rank"], fields["markov_head_type"]) == (16, head)
    assert fields["enable_confidence_head"] and fields["confidence_head_with_markov"]
    assert not fields["tie_word_embeddings"]
    loaded = load_drafter_checkpoint(folder, target)
    assert loaded.config == drafter.config
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_published_config_with_rope_parameters_and_bf16_weights_loads(folder: Path, target: Path) -> None:
    change_config(folder, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    change_tensors(folder, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}))
    drafter = load_drafter_checkpoint(folder, target)
    assert drafter.config.model.rope_theta == 5e5
    assert drafter.fc.weight.dtype == torch.float32


def test_embedding_and_head_may_be_left_to_the_target_if_the_config_says_so(target: Path, tmp_path: Path) -> None:
    folder = save_drafter_checkpoint(fresh_drafter(target), tmp_path, target)
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(load_file(folder / "model.safetensors"))
    drafter, weights = load_drafter_checkpoint(folder, target), Target.load(target)
    assert torch.equal(drafter.embed_tokens.weight, weights.embed_tokens.weight)
    assert torch.equal(drafter.lm_head.weight, weights.lm_head.weight)
    change_config(folder, embeddings_from_target=...)
    with pytest.raises(ConfigurationError, match=r"embed_tokens\.weight is missing"):
        load_drafter_checkpoint(folder, target)


def test_a_drafter_without_sequential_head_has_rank_zero(target: Path, tmp_path: Path) -> None:
    folder = save_drafter_checkpoint(fresh_drafter(target, "none"), tmp_path, target)
    fields = json.loads((folder / "config.json").read_text())
    assert fields["markov_rank"] == 0
    assert "markov_head_type" not in fields
    assert load_drafter_checkpoint(folder, target).config.markov_head_type == "none"


def test_without_confidence_weights_there_is_no_confidence_head(folder: Path, target: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("confidence_head.proj.weight", "confidence_head.proj.bias"):
            del tensors[name]

    change_tensors(folder, drop)
    assert not load_drafter_checkpoint(folder, target).config.confidence_head


def test_only_the_drafters_own_weights_are_trainable(folder: Path, target: Path) -> None:
    frozen = {n for n, p in load_drafter_checkpoint(folder, target).named_parameters() if not p.requires_grad}
    assert frozen == {"embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"vocab_size": 321}, "vocab_size is 321"),
        ({"hidden_size": 32}, "hidden_size is 32"),
        ({"num_target_layers": 5}, "num_target_layers is 5"),
        ({"target_layer_ids": [0, 4]}, "target_layer_ids"),
        ({"target_layer_ids": [3, 0]}, "target_layer_ids"),
        ({"target_layer_ids": ...}, "target_layer_ids"),
        ({"mask_token_id": 320}, "mask_token_id 320"),
        ({"mask_token_id": ...}, "mask_token_id"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": "7"}, "block_size"),
        ({"markov_head_type": "fir"}, "markov_head_type 'fir'"),
        ({"markov_head_type": ...}, "markov_head_type"),
        ({"architectures": ["Gemma4DSparkModel"]}, "architectures"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({"draft_vocab_size": 100}, "draft_vocab_size 100 needs tensor d2t"),
        ({"draft_vocab_size": 321}, "draft_vocab_size 321"),
        ({"draft_vocab_size": 0}, "draft_vocab_size 0"),
        ({"transformer_layer_config": {}}, "transformer_layer_config"),
        ({"dspark_config": {}}, "dspark_config"),
        ({"aux_hidden_state_layer_ids": [1, 4]}, "aux_hidden_state_layer_ids"),
        ({"embeddings_from_target": True}, r"embeddings_from_target is true, but tensor embed_tokens\.weight"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], named: str, folder: Path, target: Path
) -> None:
    change_config(folder, **fields)
    with pytest.raises(ConfigurationError, match=named):
        load_drafter_checkpoint(folder, target)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("fc.weight"), r"fc\.weight is missing"),
        (lambda t: t.pop("layers.1.self_attn.k_norm.weight"), r"layers\.1\.self_attn\.k_norm\.weight is missing"),
        (lambda t: t.pop("confidence_head.proj.bias"), r"confidence_head\.proj\.bias is missing"),
        (lambda t: t.update({"layers.2.mlp.up_proj.weight": torch.zeros(1)}), r"layers\.2\.mlp\.up_proj\.weight"),
        (lambda t: t.update({"markov_head.gate_proj.bias": torch.zeros(16)}), r"markov_head\.gate_proj\.bias"),
        (lambda t: t.update({"markov_head.markov_w1.weight": torch.zeros(320, 8)}), r"markov_w1.*\[320, 8\]"),
        (lambda t: t.update({"d2t": torch.zeros(100, dtype=torch.long)}), r"d2t.*\[100\], expected.*\[320\]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_its_name(
    change: Callable[[dict[str, torch.Tensor]], Any], named: str, folder: Path, target: Path
) -> None:
    change_tensors(folder, change)
    with pytest.raises(ConfigurationError, match=named):
        load_drafter_checkpoint(folder, target)


@pytest.mark.parametrize("embeddings", [True, False])
def test_a_reduced_drafter_is_written_with_its_map_and_reads_back(
    embeddings: bool, target: Path, tmp_path: Path
) -> None:
    ids = np.arange(5, 310, 3)
    drafter = reduce_vocabulary(fresh_drafter(target), ids)
    folder = save_drafter_checkpoint(drafter, tmp_path, target, embeddings=embeddings, dtype=torch.bfloat16)
    tensors = load_file(folder / "model.safetensors")
    left_out = set() if embeddings else {"embed_tokens.weight", "lm_head.weight"}
    assert set(tensors) == {*PUBLISHED_NAMES, "d2t"} - left_out
    assert (torch.arange(len(ids)) + tensors["d2t"]).tolist() == ids.tolist()
    assert tensors["markov_head.markov_w1.weight"].shape == (320, 16)
    assert tensors["markov_head.markov_w2.weight"].shape == (len(ids), 16)
    assert json.loads((folder / "config.json").read_text())["draft_vocab_size"] == len(ids)
    loaded = load_drafter_checkpoint(folder, target)
    assert loaded.config == drafter.config
    assert loaded.draft_vocabulary().tolist() == ids.tolist()
    head = Target.load(target).lm_head.weight[torch.from_numpy(ids)]
    assert torch.equal(loaded.lm_head.weight, head.bfloat16().float() if embeddings else head)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("d2t"), "draft_vocab_size 100 needs tensor d2t"),
        (lambda t: t.update(d2t=t["d2t"][:50]), r"d2t.*\[50\], expected.*\[100\]"),
        (lambda t: t.update(d2t=t["d2t"].float()), "d2t is torch.float32"),
        (lambda t: t.update(d2t=t["d2t"] + 230), "d2t must select tokens of the target's vocabulary, 0 to 319"),
        (lambda t: t.update(d2t=t["d2t"] - 4), "d2t must select tokens of the target's vocabulary"),
        (lambda t: t.update(d2t=-torch.arange(100)), "d2t must select distinct target ids in rising order"),
        (lambda t: t.update(d2t=t["d2t"].flip(0)), "d2t must select distinct target ids in rising order"),
        (lambda t: t.update(t2d=torch.zeros(320, dtype=torch.bool)), "t2d marks other tokens than d2t"),
        (lambda t: t.update(t2d=torch.zeros(100, dtype=torch.bool)), r"t2d has shape \[100\], expected \[320\]"),
        (lambda t: t.update({"markov_head.markov_w2.weight": torch.zeros(320, 16)}), r"markov_w2.*\[100, 16\]"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(320, 64)}), r"lm_head.*\[100, 64\]"),
    ],
)
def test_a_vocabulary_map_that_does_not_fit_is_refused_by_its_name(
    change: Callable[[dict[str, torch.Tensor]], Any], named: str, target: Path, tmp_path: Path
) -> None:
    ids = np.concatenate([np.arange(3, 53), np.arange(54, 104)])
    folder = save_drafter_checkpoint(reduce_vocabulary(fresh_drafter(target), ids), tmp_path, target, embeddings=True)
    change_tensors(folder, change)
    with pytest.raises(ConfigurationError, match=named):
        load_drafter_checkpoint(folder, target)


def test_a_vocabulary_can_be_reduced_again_but_not_grow(target: Path) -> None:
    drafter = fresh_drafter(target)
    once = reduce_vocabulary(drafter, np.arange(10, 110))
    twice = reduce_vocabulary(once, np.array([20, 30, 109]))
    rows = drafter.markov_head.markov_w2.weight[[20, 30, 109]]
    assert torch.equal(twice.markov_head.markov_w2.weight, rows)
    assert {n for n, p in twice.named_parameters() if not p.requires_grad} == {"embed_tokens.weight", "lm_head.weight"}
    assert reduce_vocabulary(drafter, np.arange(320)).d2t is None
    for ids in ([9, 20], [20, 20], [30, 20], [-1, 20], [20, 320], []):
        with pytest.raises(ConfigurationError, match="a draft vocabulary"):
            reduce_vocabulary(once, np.array(ids, np.int64))


def test_an_initial_drafter_is_the_targets_layers_and_a_seed(target: Path) -> None:
    drafter, weights = fresh_drafter(target), Target.load(target)
    for layer, source in zip(drafter.layers, (1, 2), strict=True):
        for name, tensor in weights.layers[source].state_dict().items():
            assert torch.equal(layer.state_dict()[name], tensor), name
    assert torch.equal(drafter.norm.weight, weights.norm.weight)
    taps = torch.randn(3, 2 * 64)
    torch.testing.assert_close(drafter.fc(taps), (taps[:, :64] + taps[:, 64:]) / 2)
    same, other = fresh_drafter(target).state_dict(), fresh_drafter(target, seed=1).state_dict()
    name = "markov_head.markov_w1.weight"
    assert torch.equal(drafter.state_dict()[name], same[name])
    assert not torch.equal(drafter.state_dict()[name], other[name])


def test_a_start_layer_the_target_lacks_is_refused(target: Path) -> None:
    with pytest.raises(ConfigurationError, match="start layer 4"):
        initialise_drafter(target, target_layer_ids=[0], start_layers=[4], mask_token_id=300)


def write_tokenizer(folder: Path, vocabulary: int, special: list[str]) -> None:
    names = [*special, *(f"<{index}>" for index in range(len(special), vocabulary))]
    added = [{"id": index, "content": name, "special": True} for index, name in enumerate(special)]
    values = {"added_tokens": added, "model": {"vocab": {name: index for index, name in enumerate(names)}}}
    (folder / "tokenizer.json").write_text(json.dumps(values))


def test_the_mask_is_a_token_no_text_holds(tmp_path: Path) -> None:
    target = make_tiny_target(tmp_path)
    used = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    write_tokenizer(target, 320, [*used, "<file_sep>", "<empty_output>"])
    assert find_mask_token(target) == 4
    write_tokenizer(target, 318, used)
    assert find_mask_token(target) == 318
    write_tokenizer(target, 320, used)
    with pytest.raises(ConfigurationError, match="mask_token_id"):
        find_mask_token(target)
