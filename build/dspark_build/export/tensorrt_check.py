"""Whether a parsed network is the one that was meant.

A parser that returns True proves little: it may leave an input without a consumer, and the plan is then silently wrong.
So the layers are walked, and every output must depend on every input that the contract says it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dspark.engines.tensorrt_checks import dtype_name
from dspark.engines.tensorrt_contract import NEW, PAST, GraphContract, GraphTensor

if TYPE_CHECKING:
    import tensorrt as trt

MASK_OPERAND = 3                     # of an attention layer: queries, keys, values, mask


class NetworkWalk:
    """Which network inputs every tensor's values come from; knowing only their shape does not count."""

    def __init__(self, network: trt.INetworkDefinition) -> None:
        import tensorrt as trt

        self.layers = [network.get_layer(index) for index in range(network.num_layers)]
        self.inputs = [network.get_input(index) for index in range(network.num_inputs)]
        self.outputs = [network.get_output(index) for index in range(network.num_outputs)]
        self._sources = {tensor.name: frozenset({tensor.name}) for tensor in self.inputs}
        self._producers: dict[str, trt.ILayer] = {}
        for layer in self.layers:
            for index in range(layer.num_outputs):
                if (output := layer.get_output(index)) is not None:
                    self._producers[output.name] = layer
        grown = True
        while grown:                 # layers usually come in order, so that the second pass finds nothing new
            grown = False
            for layer in self.layers:
                shape_only = layer.type == trt.LayerType.SHAPE
                found = frozenset() if shape_only else self._sources_of_operands(layer)
                for index in range(layer.num_outputs):
                    output = layer.get_output(index)
                    if output is not None and not found <= self._sources.get(output.name, frozenset()):
                        self._sources[output.name] = found
                        grown = True

    def sources(self, tensor: trt.ITensor | None) -> frozenset[str]:
        """Names of the network inputs that a tensor's values come from."""
        return frozenset() if tensor is None else self._sources.get(tensor.name, frozenset())

    def producer(self, tensor: str) -> trt.ILayer | None:
        return self._producers.get(tensor)

    def _sources_of_operands(self, layer: trt.ILayer) -> frozenset[str]:
        return frozenset().union(*(self.sources(layer.get_input(index)) for index in range(layer.num_inputs)))


def network_faults(network: trt.INetworkDefinition, contract: GraphContract) -> list[str]:
    """Everything in which the network differs from its contract, one sentence each; empty when nothing does."""
    walk = NetworkWalk(network)
    return [
        *_tensor_faults("input", walk.inputs, contract.inputs),
        *_tensor_faults("output", walk.outputs, contract.outputs),
        *_unread_inputs(walk),
        *_missing_dependences(walk, contract),
        *_attention_faults(walk, contract),
        *_cache_faults(walk, contract),
    ]


def _tensor_faults(kind: str, tensors: list[trt.ITensor], expected: tuple[GraphTensor, ...]) -> Iterator[str]:
    given = {tensor.name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in tensors}
    wanted = {t.name: (t.dtype, tuple(axis if isinstance(axis, int) else -1 for axis in t.shape)) for t in expected}
    for name in [*wanted, *(name for name in given if name not in wanted)]:
        if name not in given:
            yield f"{kind} {name} is missing"
        elif name not in wanted:
            yield f"{kind} {name} is not in the contract"
        elif given[name] != wanted[name]:
            yield f"{kind} {name} is {given[name]}, expected {wanted[name]}"


def _unread_inputs(walk: NetworkWalk) -> Iterator[str]:
    read = frozenset().union(*(walk.sources(output) for output in walk.outputs))
    for tensor in walk.inputs:
        if tensor.name not in read:
            yield f"input {tensor.name} has no consumer: no output's values depend on it"


def _missing_dependences(walk: NetworkWalk, contract: GraphContract) -> Iterator[str]:
    needs = {tensor.name: tensor.needs for tensor in contract.outputs}
    for output in walk.outputs:
        missing = needs.get(output.name, frozenset()) - walk.sources(output)
        if missing:
            yield f"output {output.name} does not depend on {', '.join(sorted(missing))}"


def _attention_faults(walk: NetworkWalk, contract: GraphContract) -> Iterator[str]:
    import tensorrt as trt

    attentions = [layer for layer in walk.layers if layer.type == trt.LayerType.ATTENTION_INPUT]
    if len(attentions) != contract.attention_layers:
        yield f"{len(attentions)} attention layers, expected {contract.attention_layers}"
    for layer in attentions:
        sources = walk.sources(layer.get_input(MASK_OPERAND) if layer.num_inputs > MASK_OPERAND else None)
        if sources != contract.mask_inputs:
            came, wanted = (", ".join(sorted(names)) or "nothing" for names in (sources, contract.mask_inputs))
            yield f"the mask of {layer.name} comes from {came}, expected {wanted}"


def _cache_faults(walk: NetworkWalk, contract: GraphContract) -> Iterator[str]:
    """A cache output must be an update of the cache input that it shares its memory with."""
    import tensorrt as trt

    for name in (tensor.name for tensor in contract.outputs if tensor.name.startswith(NEW)):
        layer = walk.producer(name)
        past = PAST + name.removeprefix(NEW)
        updates = layer is not None and layer.type == trt.LayerType.KV_CACHE_UPDATE
        cache = layer.get_input(0) if layer is not None and updates else None
        if cache is None or cache.name != past:
            yield f"output {name} is not {past} updated in place"
