"""Names, types and shapes of the graphs that become TensorRT plans, and which outputs hang on which inputs.

The build checks the parsed network against it, and the runtime the loaded plan. Axes: R rows (of the target, the slots
of a run; of the drafter, requests), L tokens a row, N rows of logits a row, A context rows. The target's caches are
[R, kv_heads, capacity, head_size]; each one's `past_` input and `new_` output are one buffer, updated in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dspark.engines.contract import DrafterLimits, TargetLimits
from dspark.engines.drafter_names import BLOCK_INPUTS, BLOCK_OUTPUTS, CONTEXT_INPUTS, pool_names

PAST, NEW = "past_", "new_"


@dataclass(frozen=True)
class GraphTensor:
    """One input or output; a letter in `shape` is an axis that differs from run to run."""

    name: str
    dtype: str                       # "int64" | "int32" | "bool" | "float32" | "float16" | "bfloat16"
    shape: tuple[int | str, ...]
    needs: frozenset[str] = frozenset()      # of an output: the inputs that must reach it


@dataclass(frozen=True)
class GraphContract:
    """What a graph has to look like from outside, and the mask within."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    attention_layers: int
    mask_inputs: frozenset[str]      # every attention's mask comes from these, and from nothing else

    @property
    def tensors(self) -> Iterator[GraphTensor]:
        yield from self.inputs
        yield from self.outputs


@dataclass(frozen=True)
class ModelShape:
    """What the graphs know of a model besides its limits."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: str                       # of weights and caches: "float16" | "bfloat16", or "float32" for a CPU


def cache_names(layers: int) -> list[str]:
    """The target's caches, in the order of the graph's inputs and outputs."""
    return [f"{kind}.{layer}" for layer in range(layers) for kind in ("key", "value")]


def target_contract(limits: TargetLimits, shape: ModelShape, capacity: int, tap_ids: tuple[int, ...]) -> GraphContract:
    """The target: `mask` is True where a token may look, a row's first token goes to `write_at` in its cache."""
    cache = ("R", shape.kv_heads, capacity, shape.head_size)
    inputs = (
        GraphTensor("tokens", "int64", ("R", "L")),
        GraphTensor("positions", "int64", ("R", "L")),
        GraphTensor("logit_rows", "int64", ("R", "N")),
        GraphTensor("mask", "bool", ("R", 1, "L", capacity)),
        GraphTensor("write_at", "int64", ("R",)),
        *(GraphTensor(PAST + name, shape.dtype, cache) for name in cache_names(shape.layers)),
    )

    def after(layers: int) -> frozenset[str]:
        """What the output of the first `layers` layers hangs on."""
        if layers == 0:
            return frozenset({"tokens"})
        return frozenset({"tokens", "positions", "mask", "write_at", *(PAST + name for name in cache_names(layers))})

    def of_cache(layer: int, kind: str) -> GraphTensor:
        turned = {"positions"} if kind == "key" else set()
        needs = after(layer) | {"write_at", f"{PAST}{kind}.{layer}"} | turned
        return GraphTensor(f"{NEW}{kind}.{layer}", shape.dtype, cache, needs)

    outputs = (
        GraphTensor("logits", "float32", ("R", "N", limits.vocabulary_size), after(shape.layers) | {"logit_rows"}),
        GraphTensor("features", "float32", ("R", "L", limits.hidden_size), after(1 + max(tap_ids))),
        *(of_cache(layer, kind) for layer in range(shape.layers) for kind in ("key", "value")),
    )
    return GraphContract(inputs, outputs, shape.layers, frozenset({"mask"}))


def context_contract(limits: DrafterLimits, shape: ModelShape) -> GraphContract:
    """The drafter's context graph: feature rows in, K and V rows of every layer out."""
    features, positions = CONTEXT_INPUTS
    row = ("A", shape.kv_heads, shape.head_size)
    outputs = (
        GraphTensor(name, shape.dtype, row, frozenset({features, positions} if name.startswith("keys") else {features}))
        for name in pool_names(shape.layers)
    )
    inputs = (
        GraphTensor(features, "float32", ("A", limits.feature_size)),
        GraphTensor(positions, "int32", ("A",)),
    )
    return GraphContract(inputs, tuple(outputs), 0, frozenset())


def block_contract(limits: DrafterLimits, shape: ModelShape) -> GraphContract:
    """The drafter's block graph: it reads the rings [slots, W, kv_heads, head_size] and drafts for R requests."""
    ring = (limits.max_slots, limits.window, shape.kv_heads, shape.head_size)
    block = ("R", limits.block_size)
    floats = {"temperatures": ("R",), "uniforms": block}
    inputs = (
        *(GraphTensor(n, "float32" if n in floats else "int32", floats.get(n, ("R",))) for n in BLOCK_INPUTS),
        *(GraphTensor(name, shape.dtype, ring) for name in pool_names(shape.layers)),
    )
    everything = frozenset(tensor.name for tensor in inputs)
    hidden = everything - frozenset(floats)
    kinds: dict[str, tuple[str, tuple[int | str, ...], frozenset[str]]] = {
        "tokens": ("int32", block, everything),
        "confidence_logits": ("float32", block, hidden if limits.has_confidence else frozenset()),
        "draft_ids": ("int32", (*block, limits.candidates), hidden),
        "draft_probs": ("float32", (*block, limits.candidates), hidden | {"temperatures"}),
    }
    outputs = tuple(GraphTensor(name, *kinds[name]) for name in BLOCK_OUTPUTS)
    return GraphContract(inputs, outputs, shape.layers, frozenset({"context_lengths"}))
