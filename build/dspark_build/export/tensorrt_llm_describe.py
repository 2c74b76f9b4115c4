"""Describing an engine's network: inputs with the ranges of their axes, the module's layers, named outputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from dspark.engines.tensorrt_llm_tensors import EngineTensor, PagedShape
from dspark.errors import ConfigurationError
from tensorrt_llm.builder import Builder
from tensorrt_llm.functional import Tensor
from tensorrt_llm.module import Module
from tensorrt_llm.network import Network, net_guard

from dspark_build.export.tensorrt_llm_head import DraftInputs
from dspark_build.export.tensorrt_llm_layers import ATTENTION_NAMES, AttentionTensors
from dspark_build.export.tensorrt_llm_networks import DrafterNetwork, TargetNetwork

Outputs = Sequence[Tensor]
Define = Callable[[Mapping[str, Tensor]], Outputs]


def build_engine(
    module: Module,
    define: Define,
    shape: PagedShape,
    inputs: Sequence[EngineTensor],
    outputs: Sequence[EngineTensor],
) -> bytes:
    """The serialised engine of a module with weights; it needs the GPU it is for.

    `define` adds the module's layers over the inputs and returns the tensors of `outputs`. Raises ConfigurationError
    when TensorRT gives no engine.
    """
    builder = Builder()
    network = builder.create_network()
    _configure(network, shape)
    with net_guard(network):
        network.set_named_parameters(module.named_parameters())
        given = define({tensor.name: _input(tensor, shape) for tensor in inputs})
        for tensor, value in zip(outputs, given, strict=True):
            value.mark_output(tensor.name, tensor.dtype)
    engine = builder.build_engine(network, builder.create_builder_config(precision=shape.dtype))
    if engine is None:
        raise ConfigurationError("TensorRT could not build the engine; its log says why")
    return bytes(engine)


def define_target(module: TargetNetwork) -> Define:
    """logits, features."""

    def define(inputs: Mapping[str, Tensor]) -> Outputs:
        logits, features = module(
            inputs["input_ids"], inputs["logit_rows"], inputs["feature_rows"], _attention(inputs)
        )
        return logits, features

    return define


def define_drafter(module: DrafterNetwork) -> Define:
    """tokens, draft_ids, draft_probs and, with a confidence head, confidence_logits."""

    def define(inputs: Mapping[str, Tensor]) -> Outputs:
        drafted = module(
            inputs["input_ids"],
            inputs["is_context"],
            inputs["features"],
            inputs["block_rows"],
            DraftInputs(inputs["anchors"], inputs["temperatures"], inputs["uniforms"]),
            _attention(inputs),
        )
        outputs = [drafted.tokens, drafted.draft_ids, drafted.draft_probs]
        return outputs if drafted.confidence_logits is None else [*outputs, drafted.confidence_logits]

    return define


def _configure(network: Network, shape: PagedShape) -> None:
    """Packed inputs, paged KV, and attention in the context phase that reads a sequence's past from the pool."""
    plugins = network.plugin_config
    plugins.gpt_attention_plugin = shape.dtype
    plugins.gemm_plugin = None
    plugins.context_fmha = True
    plugins.remove_input_padding = True
    plugins.paged_kv_cache = True
    plugins.tokens_per_block = shape.block_size
    plugins.use_paged_context_fmha = True
    plugins.use_fp8_context_fmha = False          # on by default in the later 1.x, and wants scales that are not here


def _input(tensor: EngineTensor, shape: PagedShape) -> Tensor:
    """A network input; axes of the same letter have the same range, and the usual size is the largest."""
    ranges: OrderedDict[str, Sequence[Sequence[int] | int]] = OrderedDict()
    for place, axis in enumerate(tensor.shape):
        if isinstance(axis, int):
            ranges[f"{tensor.name}_{place}"] = [axis]
        else:
            ranges[axis] = [[1, shape.most(axis), shape.most(axis)]]
    sizes = [axis if isinstance(axis, int) else -1 for axis in tensor.shape]
    return Tensor(name=tensor.name, dtype=tensor.dtype, shape=sizes, dim_range=ranges)


def _attention(inputs: Mapping[str, Tensor]) -> AttentionTensors:
    return AttentionTensors(**{name: inputs[name] for name in ATTENTION_NAMES})
