"""Inputs and outputs of the TensorRT-LLM engines: what the build declares is what the runtime binds.

Axes that differ from run to run: T tokens, R sequences, N rows of logits, A feature rows, B drafted blocks. Names of
the attention inputs are those of TensorRT-LLM's own engines. `on_host`: the plugin reads the tensor on the CPU, so its
address is one of host memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dspark.engines.contract import DrafterLimits, TargetLimits

DTYPE_BYTES = {"int32": 4, "int64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
PERF_KNOBS = 16                      # length of host_runtime_perf_knobs, fixed in TensorRT-LLM


@dataclass(frozen=True)
class EngineTensor:
    """One input or output; a letter in `shape` is an axis."""

    name: str
    dtype: str                       # a key of DTYPE_BYTES
    shape: tuple[int | str, ...]
    on_host: bool = False


@dataclass(frozen=True)
class PagedShape:
    """What the engine's KV pool looks like, and how much one run may bring. Part of engine.json."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: str                       # of weights and KV pool: "float16" | "bfloat16"
    block_size: int                  # tokens of a KV block
    blocks: int                      # in the pool
    capacity: int                    # tokens that one sequence may hold, drafts included
    max_tokens: int                  # T
    max_sequences: int               # R, and B of a drafter
    max_logit_rows: int              # N; 0 for a drafter

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.capacity // self.block_size)

    @property
    def block_bytes(self) -> int:
        """K or V of one block in one layer."""
        return self.block_size * self.kv_heads * self.head_size * DTYPE_BYTES[self.dtype]

    @property
    def pool_bytes(self) -> int:
        """The pool is [blocks, layers, 2 (K, V), kv_heads, block_size, head_size]."""
        return self.blocks * self.layers * 2 * self.block_bytes

    def most(self, axis: str) -> int:
        """The largest size of an axis."""
        return {
            "T": self.max_tokens,
            "R": self.max_sequences,
            "N": self.max_logit_rows,
            "A": self.max_tokens,
            "B": self.max_sequences,
        }[axis]

    def most_bytes(self, tensor: EngineTensor) -> int:
        """A tensor's largest size."""
        sizes = (axis if isinstance(axis, int) else self.most(axis) for axis in tensor.shape)
        return math.prod(sizes) * DTYPE_BYTES[tensor.dtype]


def attention_inputs(shape: PagedShape) -> tuple[EngineTensor, ...]:
    """What the gpt_attention plugin of every layer reads, besides Q, K and V."""
    offsets = (1, "R", 2, shape.blocks_per_sequence)     # one pool
    return (
        EngineTensor("sequence_length", "int32", ("R",)),
        EngineTensor("context_lengths", "int32", ("R",)),
        EngineTensor("cache_indirection", "int32", ("R", 1, shape.capacity)),
        EngineTensor("kv_cache_block_offsets", "int32", offsets),
        EngineTensor("host_kv_cache_block_offsets", "int32", offsets, on_host=True),
        EngineTensor("host_kv_cache_pool_pointers", "int64", (1, 2), on_host=True),
        EngineTensor("host_kv_cache_pool_mapping", "int32", (shape.layers, 2), on_host=True),
        EngineTensor("host_context_lengths", "int32", ("R",), on_host=True),
        EngineTensor("host_past_key_value_lengths", "int32", ("R",), on_host=True),
        EngineTensor("host_request_types", "int32", ("R",), on_host=True),
        EngineTensor("host_max_attention_window_sizes", "int32", (shape.layers,), on_host=True),
        EngineTensor("host_sink_token_length", "int32", (1,), on_host=True),
        EngineTensor("host_runtime_perf_knobs", "int64", (PERF_KNOBS,), on_host=True),
        EngineTensor("host_context_progress", "int64", (1,), on_host=True),
    )


def target_inputs(shape: PagedShape) -> tuple[EngineTensor, ...]:
    """Packed tokens, and which of them leave as logits and as features."""
    return (
        EngineTensor("input_ids", "int32", ("T",)),
        EngineTensor("logit_rows", "int32", ("N",)),
        EngineTensor("feature_rows", "int32", ("A",)),
        *attention_inputs(shape),
    )


def target_outputs(limits: TargetLimits) -> tuple[EngineTensor, ...]:
    """Logits and features of the rows asked for."""
    return (
        EngineTensor("logits", "float32", ("N", limits.vocabulary_size)),
        EngineTensor("features", "float32", ("A", limits.hidden_size)),
    )


def drafter_inputs(shape: PagedShape, limits: DrafterLimits) -> tuple[EngineTensor, ...]:
    """Packed rows, each of context (its feature row is read) or of a block (its token is), and the blocks to draft."""
    block = ("B", limits.block_size)
    return (
        EngineTensor("input_ids", "int32", ("T",)),
        EngineTensor("is_context", "int32", ("T",)),
        EngineTensor("features", "float32", ("T", limits.feature_size)),
        EngineTensor("block_rows", "int32", block),
        EngineTensor("anchors", "int32", ("B",)),
        EngineTensor("temperatures", "float32", ("B",)),
        EngineTensor("uniforms", "float32", block),
        *attention_inputs(shape),
    )


def drafter_outputs(limits: DrafterLimits) -> tuple[EngineTensor, ...]:
    """The drafted blocks; no confidence logits where the drafter has no such head."""
    block = ("B", limits.block_size)
    confidence = (EngineTensor("confidence_logits", "float32", block),) if limits.has_confidence else ()
    return (
        EngineTensor("tokens", "int32", block),
        EngineTensor("draft_ids", "int32", (*block, limits.candidates)),
        EngineTensor("draft_probs", "float32", (*block, limits.candidates)),
        *confidence,
    )
