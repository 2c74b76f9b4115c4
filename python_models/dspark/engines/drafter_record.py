"""engine.json of an OpenVINO drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dspark.engines.contract import DrafterLimits
from dspark.engines.engine_json import BuildFacts


@dataclass(frozen=True)
class RunSizes:
    """How much one run of a graph is given, so that a request's result does not depend on its neighbours.

    Matrix kernels round differently for a single row, and again from some number of rows on.
    """

    least: int                       # fewer are padded
    most: int                        # more are split


@dataclass(frozen=True)
class DrafterRecord:
    """What the folder holds: `context.xml` and `block.xml` with their weights, and how to run them."""

    engine: ClassVar[str] = "openvino-drafter"

    limits: DrafterLimits
    layers: int
    kv_heads: int
    head_size: int
    markov_head_type: str            # "none" | "vanilla" | "gated" | "rnn"
    requests_per_run: RunSizes       # of the block graph
    context_rows_per_run: RunSizes   # of the context graph
    quantise_activations: bool       # false: DYNAMIC_QUANTIZATION_GROUP_SIZE is 0
    exact: bool                      # results were bit-identical whatever the batch
    facts: BuildFacts
