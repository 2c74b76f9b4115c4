"""One drafter in the three packagings that are published: each loads, compiles and drafts the same block."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dspark.engines.contract import DrafterResult, DrafterStep
from dspark.engines.openvino_drafter import OpenVinoDrafter
from dspark.errors import ConfigurationError
from dspark_build.drafters import (
    initialise_drafter,
    load_drafter_checkpoint,
    load_feature_head,
    read_drafter_config,
    reduce_vocabulary,
    save_drafter_checkpoint,
)
from dspark_build.export.drafter import DrafterSizes, build_drafter
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.tiny import make_tiny_target
from safetensors.torch import load_file, save_file

GAMMA, VOCABULARY, HIDDEN, TAPS, MASK = 3, 320, 32, [0, 2], 300
PART = np.arange(2, 202, 2)          # what the reduced drafter can draft
BACKBONE = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "layer_types": ["full_attention"] * 2,
    "max_position_embeddings": 512,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}
HEADS = {
    "markov_rank": 8,
    "markov_head_type": "gated",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packagings") / "target"
    return make_tiny_target(
        folder, "qwen3", vocabulary=VOCABULARY, layers=4, hidden=HIDDEN, intermediate=48, head_size=8
    )


def deepspec(folder: Path, target: Path, part: np.ndarray | None = None) -> Path:
    drafter = initialise_drafter(
        target, target_layer_ids=TAPS, start_layers=[1, 2], block_size=GAMMA, markov_head_type="gated", markov_rank=8,
        mask_token_id=MASK,
    )  # fmt: skip
    random = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.startswith(("markov_head", "confidence_head", "fc")):
                parameter.normal_(0, 0.5, generator=random)
    if part is not None:
        drafter = reduce_vocabulary(drafter, part)
    return save_drafter_checkpoint(drafter, folder, target, embeddings=True)


def write(folder: Path, fields: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors")
    return folder


def speculators_fields(**changes: Any) -> dict[str, Any]:
    fields = {
        "architectures": ["DSparkDraftModel"],
        "auto_map": {"": "config.DSparkSpeculatorConfig"},
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "block_size": GAMMA,
        "draft_vocab_size": len(PART),
        "dtype": "bfloat16",
        "mask_token_id": MASK,
        "max_anchors": 256,
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": GAMMA,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "Qwen/Qwen3-4B"},
        },
        "speculators_model_type": "dspark",
        "speculators_version": "0.7.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "topk_context": 0,
        "topk_local_window": 128,
        "transformer_layer_config": BACKBONE | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        **HEADS,
    } | changes
    return {name: value for name, value in fields.items() if value is not ...}


def speculators_tensors(published: Path) -> dict[str, torch.Tensor]:
    """The published ones without the target's embedding, with the map in both directions."""
    tensors = load_file(published / "model.safetensors")
    del tensors["embed_tokens.weight"]
    drafted = torch.zeros(VOCABULARY, dtype=torch.bool)
    drafted[PART] = True
    return tensors | {"t2d": drafted}


def specforge_fields(**nested: Any) -> dict[str, Any]:
    own = {
        "mask_token_id": MASK,
        "target_layer_ids": TAPS,
        "projector_type": "dspark",
        "confidence_head_alpha": 1.0,
        **HEADS,
    } | nested
    return BACKBONE | {
        "architectures": ["DSparkDraftModel"],
        "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
        "block_size": GAMMA,
        "dflash_config": {name: value for name, value in own.items() if value is not ...},
        "dtype": "bfloat16",
        "max_window_layers": 2,
        "num_target_layers": 4,
        "rope_scaling": None,
        "rope_theta": 10000.0,
    }


def specforge_tensors(published: Path) -> dict[str, torch.Tensor]:
    """The published ones without embedding and head."""
    tensors = load_file(published / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name not in ("embed_tokens.weight", "lm_head.weight")}


def drafted_block(drafter: Path, target: Path, out: Path) -> DrafterResult:
    """What the compiled engine drafts for two requests, one greedy, over a few context rows."""
    build_drafter(drafter, target, "fp32", out, DrafterSizes(max_slots=2, window=8))
    random = np.random.default_rng(1)
    config = read_drafter_config(drafter, target)
    return OpenVinoDrafter(out).step(
        DrafterStep(
            slots=np.array([0, 1], np.int32),
            anchors=np.array([5, 100], np.int32) % config.model.vocabulary_size,
            positions=np.array([4, 2], np.int32),
            context_counts=np.array([4, 2], np.int32),
            drafts=np.ones(2, np.bool_),
            context=random.standard_normal((6, config.model.hidden_size), np.float32),
            temperatures=np.array([1.0, 0.0], np.float32),
            uniforms=random.random((2, config.block_size), np.float32),
            noise_keys=np.zeros((2, config.block_size), np.int32),
            coupled=np.zeros(2, np.bool_),
        )
    )


@pytest.mark.parametrize("packaging", ["speculators", "specforge"])
def test_another_packaging_of_the_same_weights_drafts_the_same_block(
    packaging: str, target: Path, tmp_path: Path
) -> None:
    published = deepspec(tmp_path / "published", target, PART if packaging == "speculators" else None)
    if packaging == "speculators":
        other = write(tmp_path / "other", speculators_fields(), speculators_tensors(published))
    else:
        other = write(tmp_path / "other", specforge_fields(), specforge_tensors(published))
    assert read_drafter_config(other, target).target_layer_ids == tuple(TAPS)
    expected = drafted_block(published, target, tmp_path / "published-engine")
    found = drafted_block(other, target, tmp_path / "other-engine")
    for name in ("tokens", "confidence_logits", "draft_ids", "draft_probs"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    if packaging == "speculators":
        assert np.isin(found.draft_ids, PART).all()
    config = read_drafter_config(published, target)
    heads = [load_feature_head(folder, config) for folder in (published, other)]
    assert torch.equal(heads[0].fc.weight, heads[1].fc.weight)
    assert torch.equal(heads[0].hidden_norm.weight, heads[1].hidden_norm.weight)


def test_the_targets_engine_takes_taps_and_block_size_from_another_packaging(target: Path, tmp_path: Path) -> None:
    published = deepspec(tmp_path / "published", target, PART)
    other = write(tmp_path / "other", speculators_fields(), speculators_tensors(published))
    record = build_target(target, other, "fp32", tmp_path / "engine", TargetSizes(64, max_slots=2, kv_tokens=128))
    assert record.tap_ids == tuple(TAPS)
    assert record.limits.max_draft_tokens == GAMMA


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": ...},
        {"sample_from_anchor": ...},
        {"speculators_config": None, "sample_from_anchor": ...},
        {"target_hidden_size": HIDDEN},
        {"enable_correction_head": False, "correction_rank": None},
    ],
)
def test_a_speculators_config_may_leave_out_what_it_says_elsewhere(
    changes: dict[str, Any], target: Path, tmp_path: Path
) -> None:
    published = deepspec(tmp_path / "published", target, PART)
    other = write(tmp_path / "other", speculators_fields(**changes), speculators_tensors(published))
    assert load_drafter_checkpoint(other, target).config == load_drafter_checkpoint(published, target).config


def test_a_speculators_drafter_over_the_whole_vocabulary_borrows_embedding_and_head(
    target: Path, tmp_path: Path
) -> None:
    published = deepspec(tmp_path / "published", target)
    fields = speculators_fields(draft_vocab_size=VOCABULARY)
    other = write(tmp_path / "other", fields, specforge_tensors(published))
    found, expected = load_drafter_checkpoint(other, target), load_drafter_checkpoint(published, target)
    assert found.config == expected.config and found.d2t is None
    for (name, ours), theirs in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type 'eagle3'"),
        ({"sample_from_anchor": False}, "sample_from_anchor False"),
        ({"sample_from_anchor": ..., "block_size": GAMMA + 1}, "sample_from_anchor is missing"),
        ({"transformer_layer_config": ...}, "transformer_layer_config must be a JSON object"),
        ({"transformer_layer_config": BACKBONE | {"model_type": "gpt_oss"}}, "transformer_layer_config.model_type"),
        ({"transformer_layer_config": BACKBONE | {"layer_types": ["sliding_attention"] * 2}}, "layer_types"),
        ({"transformer_layer_config": BACKBONE | {"vocab_size": 100}}, "vocab_size is 100, but the target's is 320"),
        ({"aux_hidden_state_layer_ids": ...}, "aux_hidden_state_layer_ids must be a list"),
        ({"aux_hidden_state_layer_ids": [1, 5]}, r"aux_hidden_state_layer_ids are target_layer_ids \+ 1.*\[0, 4\]"),
        ({"mask_token_id": VOCABULARY}, "mask_token_id 320"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"draft_vocab_size": 99}, r"d2t is torch.int64 \[100\], expected torch.int64 \[99\]"),
        ({"target_hidden_size": 64}, "target_hidden_size 64"),
        ({"topk_context": 16}, "topk_context"),
        ({"enable_correction_head": True}, "enable_correction_head"),
        ({"speculators_config": {"algorithm": "dflash"}}, "speculators_config.algorithm 'dflash'"),
        ({"speculators_config": {"proposal_methods": ["greedy"]}}, "speculators_config.proposal_methods"),
    ],
)
def test_a_speculators_config_that_is_not_understood_is_refused_by_the_name_of_its_field(
    changes: dict[str, Any], named: str, target: Path, tmp_path: Path
) -> None:
    published = deepspec(tmp_path / "published", target, PART)
    other = write(tmp_path / "other", speculators_fields(**changes), speculators_tensors(published))
    with pytest.raises(ConfigurationError, match=named):
        load_drafter_checkpoint(other, target)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("d2t"), "draft_vocab_size 100 needs tensor d2t"),
        (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing"),
        (lambda t: t.pop("fc.weight"), r"fc\.weight is missing"),
        (lambda t: t.update({"layers.2.mlp.up_proj.weight": torch.zeros(1)}), r"layers\.2\.mlp\.up_proj\.weight"),
        (lambda t: t.update({"markov_head.markov_w1.weight": torch.zeros(100, 8)}), r"markov_w1.*\[320, 8\]"),
    ],
)
def test_a_speculators_tensor_that_does_not_fit_is_refused_by_its_name(
    change: Callable[[dict[str, torch.Tensor]], Any], named: str, target: Path, tmp_path: Path
) -> None:
    tensors = speculators_tensors(deepspec(tmp_path / "published", target, PART))
    change(tensors)
    with pytest.raises(ConfigurationError, match=named):
        load_drafter_checkpoint(write(tmp_path / "other", speculators_fields(), tensors), target)


@pytest.mark.parametrize(
    ("nested", "named"),
    [
        ({"projector_type": "domino"}, r"dflash_config\.projector_type 'domino'"),
        ({"attention_mode": "mla"}, r"dflash_config\.attention_mode 'mla'"),
        ({"shift_label": False}, r"dflash_config\.shift_label False"),
        ({"gru_hidden_dim": 16}, r"dflash_config\.gru_hidden_dim"),
        ({"block_size": 7}, r"block_size is 3, but dflash_config\.block_size is 7"),
        ({"target_layer_ids": [0, 4]}, r"dflash_config.*target_layer_ids \[0, 4\]"),
        ({"target_layer_ids": ...}, "target_layer_ids must be a list"),
        ({"mask_token_id": VOCABULARY}, "mask_token_id 320"),
        ({"mask_token_id": ...}, "mask_token_id"),
    ],
)
def test_a_specforge_config_that_is_not_understood_is_refused_by_the_name_of_its_field(
    nested: dict[str, Any], named: str, target: Path, tmp_path: Path
) -> None:
    tensors = specforge_tensors(deepspec(tmp_path / "published", target))
    with pytest.raises(ConfigurationError, match=named):
        load_drafter_checkpoint(write(tmp_path / "other", specforge_fields(**nested), tensors), target)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"dflash_config": ...}, "dflash_config must be"), ({"architectures": ["DFlashDraftModel"]}, "DFlashDraftModel"),
     ({"model_type": "gemma4"}, "model_type 'gemma4'"), ({"is_causal": True}, "is_causal True")],
)  # fmt: skip
def test_another_specforge_model_is_refused(fields: dict[str, Any], named: str, target: Path, tmp_path: Path) -> None:
    config = {name: value for name, value in (specforge_fields() | fields).items() if value is not ...}
    tensors = specforge_tensors(deepspec(tmp_path / "published", target))
    with pytest.raises(ConfigurationError, match=named):
        load_drafter_checkpoint(write(tmp_path / "other", config, tensors), target)


def test_an_old_specforge_checkpoint_and_a_reduced_one_load(target: Path, tmp_path: Path) -> None:
    tensors = specforge_tensors(deepspec(tmp_path / "published", target, PART))
    old = {f"logit_head.{name}" if "_head." in name else name: tensor for name, tensor in tensors.items()}
    other = write(tmp_path / "other", specforge_fields() | {"draft_vocab_size": len(PART)}, old)
    found = load_drafter_checkpoint(other, target)
    expected = load_drafter_checkpoint(tmp_path / "published", target)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


# What a published Qwen3 drafter holds, by name, over five layers.
PUBLISHED_LAYER = (
    "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
PUBLISHED = {
    *("embed_tokens.weight", "lm_head.weight", "fc.weight", "hidden_norm.weight", "norm.weight"),
    *("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"),
    *("confidence_head.proj.weight", "confidence_head.proj.bias"),
    *(f"layers.{layer}.{name}.weight" for layer in range(5) for name in PUBLISHED_LAYER),
}
PUBLISHED_FIELDS = {
    "architectures": ["Qwen3DSparkModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": 7,
    "bos_token_id": 151643,
    "confidence_head_with_markov": True,
    "dtype": "bfloat16",
    "enable_confidence_head": True,
    "eos_token_id": 151645,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "layer_types": ["full_attention"] * 5,
    "markov_head_type": "vanilla",
    "markov_rank": 4,
    "mask_token_id": 63,
    "max_position_embeddings": 512,
    "model_type": "qwen3",
    "num_anchors": 512,
    "num_attention_heads": 2,
    "num_hidden_layers": 5,
    "num_key_value_heads": 1,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "sliding_window": None,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 64,
}


def published_tensor(name: str, random: torch.Generator) -> torch.Tensor:
    vocabulary, hidden, rank = 64, 16, 4
    shapes = {
        "embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden), "fc": (hidden, 5 * hidden),
        "markov_w1": (vocabulary, rank), "markov_w2": (vocabulary, rank), "q_proj": (16, hidden),
        "k_proj": (8, hidden), "v_proj": (8, hidden), "o_proj": (hidden, 16), "q_norm": (8,), "k_norm": (8,),
        "gate_proj": (24, hidden), "up_proj": (24, hidden), "down_proj": (hidden, 24),
    }  # fmt: skip
    if name.startswith("confidence_head"):
        shape: tuple[int, ...] = (1,) if name.endswith("bias") else (1, hidden + rank)
    else:
        shape = shapes.get(name.split(".")[-2], (hidden,))
    return (0.3 * torch.randn(shape, generator=random)).bfloat16()


def test_a_published_qwen3_drafter_of_64_tensors_drafts_and_is_written_back_as_it_was(tmp_path: Path) -> None:
    target = make_tiny_target(
        tmp_path / "target", "qwen3", vocabulary=64, layers=36, hidden=16, heads=2, kv_heads=1, head_size=8,
        intermediate=24,
    )  # fmt: skip
    assert len(PUBLISHED) == 64
    random = torch.Generator().manual_seed(9)
    tensors = {name: published_tensor(name, random) for name in sorted(PUBLISHED)}
    folder = write(tmp_path / "published", PUBLISHED_FIELDS, tensors)
    block = drafted_block(folder, target, tmp_path / "engine")
    assert block.tokens.shape == (2, 7)
    np.testing.assert_allclose(block.draft_probs.sum(-1), 1, atol=1e-5)

    drafter = load_drafter_checkpoint(folder, target)
    written = save_drafter_checkpoint(drafter, tmp_path / "back", target, embeddings=True, dtype=torch.bfloat16)
    stored = load_file(written / "model.safetensors")
    assert set(stored) == PUBLISHED
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())
    fields = json.loads((written / "config.json").read_text())
    own = ("architectures", "block_size", "mask_token_id", "num_target_layers", "target_layer_ids", "num_anchors",
           "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov", "layer_types",
           "num_hidden_layers", "vocab_size", "hidden_size")  # fmt: skip
    assert {name: fields[name] for name in own} == {name: PUBLISHED_FIELDS[name] for name in own}
    assert "draft_vocab_size" not in fields and "embeddings_from_target" not in fields
