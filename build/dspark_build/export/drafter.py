"""Building a drafter engine: checkpoint in; a folder with context.xml, block.xml and engine.json out."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dspark.engines.contract import DrafterLimits
from dspark.engines.drafter_record import DrafterRecord
from dspark.engines.engine_json import write_record
from dspark.errors import ConfigurationError

from dspark_build.drafters import load_drafter_checkpoint
from dspark_build.export.drafter_openvino import save_drafter_graphs
from dspark_build.export.drafter_probe import (
    UNSETTLED_CONTEXT_ROWS,
    UNSETTLED_REQUESTS,
    settle_drafter_exactness,
)
from dspark_build.export.facts import build_facts
from dspark_build.export.target import PRECISIONS
from dspark_build.models.block_sampling import CANDIDATES
from dspark_build.models.drafter_config import DrafterConfig


@dataclass(frozen=True)
class DrafterSizes:
    """What a drafter is built for. The rings take 8 · layers · kv_heads · head_size bytes a slot and window row."""

    max_slots: int = 32
    window: int = 256                # W, context rows a block attends to


def build_drafter(
    drafter_checkpoint: Path,
    target_checkpoint: Path,
    precision: str,
    out: Path,
    sizes: DrafterSizes | None = None,
) -> DrafterRecord:
    """Compile a drafter for its target into the folder `out`, which is replaced as a whole.

    precision: "fp32" | "int8" (weights). Raises ConfigurationError when drafter, target and sizes do not fit together.
    """
    sizes = sizes or DrafterSizes()
    if precision not in PRECISIONS:
        raise ConfigurationError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    if min(sizes.max_slots, sizes.window) < 1:
        raise ConfigurationError(f"{sizes}: slots and window must be at least 1")
    drafter = load_drafter_checkpoint(drafter_checkpoint, target_checkpoint)
    config = drafter.config
    record = DrafterRecord(
        limits=_limits(config, sizes),
        layers=config.model.layers,
        kv_heads=config.model.kv_heads,
        head_size=config.model.head_size,
        markov_head_type=config.markov_head_type,
        requests_per_run=UNSETTLED_REQUESTS,
        context_rows_per_run=UNSETTLED_CONTEXT_ROWS,
        quantise_activations=precision == "int8",
        exact=False,
        facts=build_facts(target_checkpoint, drafter_checkpoint, precision),
    )
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_drafter_graphs(drafter, sizes.window, sizes.max_slots, precision, partial)
    del drafter
    record = settle_drafter_exactness(partial, record)
    write_record(partial, record)
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return record


def _limits(config: DrafterConfig, sizes: DrafterSizes) -> DrafterLimits:
    return DrafterLimits(
        vocabulary_size=config.model.vocabulary_size,
        feature_size=config.model.hidden_size,
        block_size=config.block_size,
        candidates=min(CANDIDATES, config.draft_vocabulary_size),
        max_slots=sizes.max_slots,
        window=sizes.window,
        has_confidence=config.confidence_head,
        can_couple=True,
    )
