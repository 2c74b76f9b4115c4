"""Weights of the torch models into the TensorRT-LLM modules: other names, and Q, K and V in one matrix."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from dspark.errors import ConfigurationError
from tensorrt_llm.module import Module
from torch import Tensor

TORCH_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
MLP_NAMES = {"mlp.gate_proj": "mlp.fc", "mlp.up_proj": "mlp.gate", "mlp.down_proj": "mlp.proj"}
HEAD_NAMES = {"markov_head.": "head.", "confidence_head.": "head.", "lm_head.": "head.lm_head."}


def target_weights(target: Mapping[str, Tensor], features: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of TargetNetwork: of a target's and a feature head's state_dict."""
    weights = {_layer_name(name): tensor for name, tensor in _fused(target).items()}
    weights.setdefault("lm_head.weight", target["embed_tokens.weight"])
    return {**weights, **features}


def drafter_weights(drafter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of DrafterNetwork: a drafter's state_dict without what the target's engine does."""
    weights = {}
    for name, tensor in _fused(drafter).items():
        if name == "d2t" or name.startswith(("fc.", "hidden_norm.")):
            continue
        for prefix, own in HEAD_NAMES.items():
            name = own + name.removeprefix(prefix) if name.startswith(prefix) else name
        weights[_layer_name(name)] = tensor
    return weights


def assign(module: Module, weights: Mapping[str, Tensor], dtype: str) -> None:
    """Give every parameter of `module` its tensor. Raises ConfigurationError naming one that is missing or surplus."""
    parameters = dict(module.named_parameters())
    differing = sorted(set(parameters) ^ set(weights))
    if differing:
        raise ConfigurationError(f"the TensorRT-LLM network and the checkpoint differ in {', '.join(differing)}")
    for name, parameter in parameters.items():
        parameter.value = weights[name].detach().to(TORCH_DTYPES[dtype]).contiguous()


def _layer_name(name: str) -> str:
    for theirs, ours in MLP_NAMES.items():
        name = name.replace(theirs, ours)
    return name.replace("self_attn.o_proj", "self_attn.dense")


def _fused(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Q, K and V of every layer one above the other."""
    fused = {}
    for name, tensor in weights.items():
        if name.endswith("self_attn.q_proj.weight"):
            stem = name.removesuffix("q_proj.weight")
            fused[f"{stem}qkv.weight"] = torch.cat([weights[f"{stem}{part}_proj.weight"] for part in "qkv"])
        elif not name.endswith(("self_attn.k_proj.weight", "self_attn.v_proj.weight")):
            fused[name] = tensor
    return fused
