"""A Llama model in a GGUF file, turned into the project's checkpoint form without loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from dspark.errors import ConfigurationError
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from dspark_build.checkpoints.form import (
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    write_generation_config,
    write_json,
)
from dspark_build.progress import Progress, silent

SPECIAL_TOKEN = 3                    # llama.cpp's token type "control"
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(path: Path, folder: Path, progress: Progress = silent) -> None:
    """Write the model in `path` to `folder`: config, float32 weights, tokenizer, chat template.

    float32 because a dequantised Q4_1 weight is a sum of two fp16 numbers, which fp16 does not hold. Raises
    ConfigurationError for an architecture or tokenizer other than SmolLM's.
    """
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for name, supported in (
        ("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm"),
    ):
        if fields.get(name) != supported:
            raise ConfigurationError(f"{path}: {name} is {fields.get(name)!r}, only {supported!r} is supported")
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors: dict[str, Tensor] = {}
    for done, tensor in enumerate(reader.tensors):
        *prefix, kind, _ = tensor.name.split(".")
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(length) for length in reversed(tensor.shape)])
        if kind in heads:
            values = _half_split(values, heads[kind])
        layer = f"model.layers.{prefix[1]}." if prefix else ""
        tensors[f"{layer}{NAMES[kind]}.weight"] = torch.from_numpy(np.ascontiguousarray(values))
        progress("converting weights", done + 1, len(reader.tensors))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    write_json(folder / CONFIG, _config(fields, tied="lm_head.weight" not in tensors))
    _tokenizer(fields).save(str(folder / TOKENIZER))
    (folder / CHAT_TEMPLATE).write_text(fields["tokenizer.chat_template"], encoding="utf-8")
    write_generation_config(
        folder, fields["tokenizer.ggml.bos_token_id"], [fields["tokenizer.ggml.eos_token_id"]]
    )


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp stores rotated pairs side by side; Hugging Face a head's first halves, then its second halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """SmolLM's byte-level BPE: every digit is a piece of its own, the rest splits as in GPT-2."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == SPECIAL_TOKEN]
    )
    return tokenizer
