"""Checkpoints: what is accepted, what is refused and how it is named, and that no work is done twice."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from dspark.errors import ConfigurationError
from dspark_build.checkpoints import default, hub
from dspark_build.checkpoints.form import checkpoint_hash, copy_tokenizer, new_folder
from dspark_build.checkpoints.local import prepare_local
from dspark_build.checkpoints.prepare import prepare
from dspark_build.models.config import ModelConfig
from dspark_build.models.target import Target
from dspark_build.tiny import make_tiny_target
from safetensors.torch import load_file, save_file

TOKENS = torch.tensor([[5, 80, 3, 200, 7, 41]])


@pytest.fixture(params=["llama", "qwen3"])
def folder(tmp_path, request) -> Path:
    return make_tiny_target(tmp_path / "tiny", request.param)


def change_config(folder: Path, **values):
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def change_tensors(folder: Path, **values):
    tensors = load_file(folder / "model.safetensors") | values
    save_file({name: t for name, t in tensors.items() if t is not None}, folder / "model.safetensors")


def test_the_definition_computes_what_transformers_computes(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    target = Target.load(folder)
    mask = torch.tensor([[False, False, True, True, True, True]])
    with torch.no_grad():
        expected = model(TOKENS, output_hidden_states=True)
        dense = target.forward_dense(TOKENS)
        padded = model(TOKENS, attention_mask=mask.long(), position_ids=torch.tensor([[0, 0, 0, 1, 2, 3]]))
        assert (target(TOKENS) - expected.logits).abs().max() < 1e-5
        assert (target(TOKENS, mask) - padded.logits)[mask].abs().max() < 1e-5
    assert (dense.embedding - expected.hidden_states[0]).abs().max() < 1e-5
    assert (dense.layer_outputs[0] - expected.hidden_states[1]).abs().max() < 1e-5
    assert torch.equal(dense.tapped([-1, 1]), torch.cat([dense.embedding, dense.layer_outputs[1]], -1))


def test_a_tied_head_is_the_embedding_whether_or_not_the_file_repeats_it(tmp_path):
    folder = make_tiny_target(tmp_path / "tied", tied=True)
    once = Target.load(folder)
    assert once.lm_head.weight is once.embed_tokens.weight
    change_tensors(folder, **{"lm_head.weight": load_file(folder / "model.safetensors")["model.embed_tokens.weight"]})
    assert torch.equal(Target.load(folder)(TOKENS), once(TOKENS))


def test_shards_are_one_checkpoint(folder, tmp_path):
    whole = Target.load(folder)(TOKENS)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="80KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert torch.equal(Target.load(folder)(TOKENS), whole)
    prepared = prepare_local(folder, tmp_path / "home")
    assert torch.equal(Target.load(prepared)(TOKENS), whole)
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(ConfigurationError, match=r"model\.safetensors\.index\.json names .*, which"):
        Target.load(folder)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"model.norm.weight": None}, r"tensor norm\.weight is missing"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, r"q_proj\.bias is not part of this model"),
        ({"model.layers.1.mlp.up_proj.weight": torch.zeros(64, 96)}, r"up_proj\.weight has shape \[64, 96\], expected"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(folder, tmp_path, tensors, message):
    change_tensors(folder, **tensors)
    with pytest.raises(ConfigurationError, match=message):
        Target.load(folder)
    with pytest.raises(ConfigurationError, match=message):
        prepare_local(folder, tmp_path / "home")
    assert not (tmp_path / "home" / "checkpoints" / "tiny").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, r"architectures is \['MixtralForCausalLM'\]; supported: Llama"),
        ({"architectures": None}, "architectures is"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window"),
        ({"sliding_window": 8}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size must be a positive number"),
        ({"num_attention_heads": 0}, "num_attention_heads must be"),
        ({"num_key_value_heads": 3}, "not a multiple"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(folder, values, message):
    change_config(folder, **values)
    with pytest.raises(ConfigurationError, match=message):
        ModelConfig.read(folder)


def test_rope_theta_is_found_where_either_generation_of_transformers_puts_it(folder):
    change_config(folder, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert ModelConfig.read(folder).rope_theta == 5e5
    change_config(folder, rope_theta=7e5, rope_parameters=None)
    assert ModelConfig.read(folder).rope_theta == 7e5


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder, tmp_path, name):
    (folder / name).unlink()
    with pytest.raises(ConfigurationError, match=name.replace(".", r"\.")):
        prepare_local(folder, tmp_path / "home")


def test_a_truncated_weight_file_is_an_error(folder):
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(ConfigurationError, match=r"model\.safetensors cannot be read"):
        Target.load(folder)


def test_a_local_folder_is_linked_and_its_texts_normalised(folder, tmp_path):
    (folder / "chat_template.jinja").unlink()
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    prepared = prepare(str(folder), tmp_path / "home")
    assert prepared == tmp_path / "home" / "checkpoints" / "tiny"
    assert (prepared / "model.safetensors").resolve() == folder / "model.safetensors"
    assert (prepared / "chat_template.jinja").read_text() == "{{ messages }}"
    assert json.loads((prepared / "generation_config.json").read_text()) == {"bos_token_id": 0, "eos_token_id": [2]}
    assert checkpoint_hash(prepared) == checkpoint_hash(folder)
    assert prepare("tiny", tmp_path / "home") == prepared


def test_two_folders_of_one_name_are_not_confused(folder, tmp_path):
    prepare_local(folder, tmp_path / "home")
    other = make_tiny_target(tmp_path / "elsewhere" / "tiny")
    with pytest.raises(ConfigurationError, match="prepared from another folder"):
        prepare_local(other, tmp_path / "home")


def test_a_prepared_checkpoint_is_not_prepared_again(folder, tmp_path):
    prepared = prepare_local(folder, tmp_path / "home")
    before = os.stat(prepared / "config.json").st_mtime_ns
    assert prepare_local(folder, tmp_path / "home") == prepared
    assert os.stat(prepared / "config.json").st_mtime_ns == before


def test_an_interrupted_preparation_leaves_nothing_that_passes_as_done(tmp_path):
    wanted = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt), new_folder(wanted) as partial:
        (partial / "config.json").write_text("{}")
        raise KeyboardInterrupt
    assert not wanted.exists()
    with new_folder(wanted) as partial:
        assert not list(partial.iterdir())
        (partial / "weights").touch()
    assert [path.name for path in wanted.iterdir()] == ["weights"]


def test_the_tokenizer_folder_holds_what_a_server_reads(folder, tmp_path):
    (folder / "chat_template.jinja").unlink()
    copy_tokenizer(folder, tmp_path / "tokenizer")
    names = {path.name for path in (tmp_path / "tokenizer").iterdir()}
    assert names == {"tokenizer.json", "generation_config.json"}


def test_a_damaged_default_model_is_refused_before_it_is_converted(tmp_path, monkeypatch):
    monkeypatch.setattr(default, "_locate", lambda: tmp_path / default.FILE)
    (tmp_path / default.FILE).write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=r"has 4 bytes, expected 98362432; reinstall it"):
        default.prepare_default(tmp_path)
    with (tmp_path / default.FILE).open("wb") as file:
        file.truncate(default.FILE_BYTES)
    with pytest.raises(ConfigurationError, match="has sha256"):
        default.prepare_default(tmp_path)
    assert not (tmp_path / "checkpoints" / default.NAME).exists()


def test_an_unreachable_hub_says_what_to_do_instead(tmp_path, monkeypatch):
    import huggingface_hub

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ConfigurationError, match=r"org/model cannot be downloaded \(ConnectionError.*give its folder"):
        prepare("org/model", tmp_path)


def test_a_hub_model_is_downloaded_once_and_prepared_under_its_own_name(folder, tmp_path, monkeypatch):
    import huggingface_hub

    def copy(name, local_dir, allow_patterns):
        assert "*.safetensors" in allow_patterns
        shutil.copytree(folder, local_dir, dirs_exist_ok=True)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", copy)
    prepared = prepare("org/Model-1B", tmp_path)
    assert prepared == tmp_path / "checkpoints" / "model-1b"
    assert hub.download("org/Model-1B", tmp_path) == tmp_path / "downloads" / "org--Model-1B"


def test_a_source_of_no_kind_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="'nonsense' is no checkpoint"):
        prepare("nonsense", tmp_path)
