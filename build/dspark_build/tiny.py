"""Random checkpoints that build in a second: real in form, meaningless in content, for tests."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dspark_build.checkpoints.form import (
    CHAT_TEMPLATE,
    CHATML,
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    write_generation_config,
    write_json,
)

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN = 2
CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def make_tiny_target(
    folder: Path,
    architecture: str = "llama",
    *,
    vocabulary: int = 320,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    intermediate: int = 96,
    max_positions: int = 512,
    tied: bool = False,
    sharpness: float = 2.0,
    seed: int = 0,
) -> Path:
    """Write a random checkpoint in the project's form to `folder` and return it.

    Token ids 0, 1, 2 are the ChatML specials, the next 256 single bytes (fewer if the vocabulary is smaller, letters
    first), the rest has names of its own. `sharpness` is about the standard deviation of the logits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / CONFIG,
        {
            "architectures": [CLASSES[architecture]],
            "model_type": architecture,
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_size,
            "max_position_embeddings": max_positions,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "tie_word_embeddings": tied,
            "torch_dtype": "float32",
            "bos_token_id": 0,
            "eos_token_id": END_OF_TURN,
        },
    )
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * (scale / columns**0.5)

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=random)

    tensors = {
        "model.embed_tokens.weight": matrix(vocabulary, hidden, sharpness),
        "model.norm.weight": norm(hidden),
    }
    if not tied:
        tensors["lm_head.weight"] = matrix(vocabulary, hidden, sharpness)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = norm(hidden)
        tensors[prefix + "post_attention_layernorm.weight"] = norm(hidden)
        tensors[prefix + "self_attn.q_proj.weight"] = matrix(heads * head_size, hidden)
        tensors[prefix + "self_attn.k_proj.weight"] = matrix(kv_heads * head_size, hidden)
        tensors[prefix + "self_attn.v_proj.weight"] = matrix(kv_heads * head_size, hidden)
        tensors[prefix + "self_attn.o_proj.weight"] = matrix(hidden, heads * head_size)
        if architecture == "qwen3":
            tensors[prefix + "self_attn.q_norm.weight"] = norm(head_size)
            tensors[prefix + "self_attn.k_norm.weight"] = norm(head_size)
        tensors[prefix + "mlp.gate_proj.weight"] = matrix(intermediate, hidden)
        tensors[prefix + "mlp.up_proj.weight"] = matrix(intermediate, hidden)
        tensors[prefix + "mlp.down_proj.weight"] = matrix(hidden, intermediate)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    _byte_tokenizer(vocabulary).save(str(folder / TOKENIZER))
    (folder / CHAT_TEMPLATE).write_text(CHATML, encoding="utf-8")
    write_generation_config(folder, 0, [END_OF_TURN, 0])
    return folder


def _byte_tokenizer(vocabulary: int) -> Tokenizer:
    # The alphabet of byte-level BPE: one printable character stands for each byte.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (not c.islower() or ord(c) > 127, c))
    names = [*SPECIAL_TOKENS, *alphabet][:vocabulary]
    names += [f"<extra_{index}>" for index in range(vocabulary - len(names))]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    return tokenizer
