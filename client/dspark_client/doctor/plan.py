"""`dspark doctor --plan`: the memory that a target and its drafter will need on a GPU, before anything is built.

With R slots, context C, block gamma, V vocabulary, d hidden size, L layers, H heads, K KV heads of size D, feed-forward
size I, W the drafter's window and P the prompt tokens of a step, in bytes:
    weights      counted from the model's definition: 2 each; int8 and fp8: 1 in matrices and 2 a row for the scale
    shared head  once more, since an engine may store embedding and head apart
    KV           R (C + gamma) 2 L K D 2       one straight cache a slot, 16 bits whatever the precision
    context KV   R min(C, W) 2 L K D 2         of the drafter
    activations  (R (gamma + 1) + P) (2 d + (H + 2 K) D + 2 I) 4      one layer's, in and out, 16 bits
    attention    (R (gamma + 1) + P) H (C + gamma + 1) 4              scores, where no kernel fuses them away
    logits       R (gamma + 1) V 8 and R gamma V 8                    float32, and a distribution made of them
    runtime      for each of two processes a CUDA context and a workspace (constants below)
The first four are arithmetic; the others are estimates on the safe side that were never compared with a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dspark.errors import ConfigurationError
from dspark.settings import ServingSettings
from dspark_build.export.drafter import DrafterSizes
from dspark_build.models.config import ModelConfig
from rich.console import Console
from rich.table import Table

from dspark_client.doctor.weights import drafter_weights, target_weights

GIB = 2**30
HALF, FLOAT = 2, 4
PROCESSES = 2                        # target and drafter are two models of Triton's Python backend
CUDA_CONTEXT, WORKSPACE = GIB // 2, GIB
USABLE = 0.95                        # of the card; the rest is lost to fragments, and to the display where there is one


class Precision(str, Enum):
    """Of the weights."""

    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    fp8 = "fp8"

    @property
    def small(self) -> bool:
        """Whether matrices take 8 bits a number."""
        return self in (Precision.int8, Precision.fp8)


@dataclass(frozen=True)
class Need:
    """One use of memory: fixed bytes, and more for every slot."""

    what: str
    fixed: int
    per_slot: int = 0

    def size(self, slots: int) -> int:
        """Bytes for so many slots."""
        return self.fixed + slots * self.per_slot


@dataclass(frozen=True)
class PlannedNeed:
    """A line of the result."""

    what: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """The result, in the names of its JSON; sizes in bytes."""

    model: str
    parameters: int
    drafter_parameters: int
    gpu: str
    gpu_bytes: int
    usable_bytes: int
    context: int
    slots: int
    precision: str
    needs: tuple[PlannedNeed, ...]
    total_bytes: int
    fits: bool
    largest_slots: int               # that fit; 0: not even the weights, or not one sequence


def plan(
    checkpoint: Path, drafter: Path | None, gpu: str, gpu_gib: float, context: int, slots: int, precision: Precision
) -> Plan:
    """What a deployment would need. Raises ConfigurationError for a checkpoint that is not supported."""
    config, weights = target_weights(checkpoint)
    if context > config.max_positions:
        raise ConfigurationError(
            f"context {context} is beyond the {config.max_positions} positions that {checkpoint} was trained for"
        )
    gamma, drafter_parameters, drafter_needs = 0, 0, []
    if drafter is not None:
        shape, own = drafter_weights(drafter, checkpoint)
        gamma, drafter_parameters = shape.block_size, own.parameters
        drafter_needs = [
            Need("drafter weights", own.size(precision.small)),
            Need("drafter context KV", 0, min(context, DrafterSizes().window) * kv_bytes(shape.model)),
            Need("drafter logits", 0, gamma * shape.draft_vocabulary_size * 2 * FLOAT),
        ]
    needs = [*_target_needs(config, context, gamma), *drafter_needs]
    needs.insert(0, Need("target weights", weights.size(precision.small)))
    if weights.shared:
        needs.insert(1, Need("copy of the shared head", weights.shared_size(precision.small)))
    needs.append(Need("CUDA contexts and workspaces", PROCESSES * (CUDA_CONTEXT + WORKSPACE)))
    usable = int(gpu_gib * GIB * USABLE)
    total = sum(need.size(slots) for need in needs)
    fixed, per_slot = sum(need.fixed for need in needs), sum(need.per_slot for need in needs)
    return Plan(
        checkpoint.name, weights.parameters, drafter_parameters, gpu, int(gpu_gib * GIB), usable, context, slots,
        precision.value, tuple(PlannedNeed(need.what, need.size(slots)) for need in needs), total, total <= usable,
        max(0, (usable - fixed) // per_slot),
    )


def kv_bytes(config: ModelConfig) -> int:
    """Keys and values of one token in all layers."""
    return 2 * config.layers * config.kv_heads * config.head_size * HALF


def _target_needs(config: ModelConfig, context: int, gamma: int) -> list[Need]:
    rows, chunk = gamma + 1, ServingSettings.prefill_chunk
    heads = (config.heads + 2 * config.kv_heads) * config.head_size
    layer = (2 * config.hidden_size + heads + 2 * config.intermediate_size) * 2 * HALF
    scores = config.heads * (context + rows) * FLOAT
    return [
        Need("target KV", 0, (context + gamma) * kv_bytes(config)),
        Need("activations", chunk * layer, rows * layer),
        Need("attention scores", chunk * scores, rows * scores),
        Need("target logits", 0, rows * config.vocabulary_size * 2 * FLOAT),
    ]


def show(found: Plan) -> None:
    """Print the plan as a table."""
    title = f"{found.model}, {found.precision}, {found.slots} slots of {found.context} tokens"
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("GiB", justify="right")
    for need in found.needs:
        table.add_row(need.what, f"{need.bytes / GIB:.2f}")
    table.add_section()
    table.add_row("all", f"{found.total_bytes / GIB:.2f}")
    table.add_row(f"{found.gpu}, less {1 - USABLE:.0%}", f"{found.usable_bytes / GIB:.2f}")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    verdict = "fits" if found.fits else "does not fit"
    console.print(f"{verdict}; at most {found.largest_slots} slots of this context do")
    console.print("(an estimate that was never compared with a GPU)")
