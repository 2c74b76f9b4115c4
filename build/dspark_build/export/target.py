"""Building a target engine: checkpoint and drafter in, a folder with engine.xml, engine.bin and engine.json out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dspark.engines.contract import TargetLimits
from dspark.engines.engine_json import ENGINE_GRAPH, TargetRecord, write_record
from dspark.engines.paged_graph import KV_BLOCK_SIZE
from dspark.engines.rows import ATTENTION_PADDING, RowRules
from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import new_folder
from dspark_build.drafters import load_feature_head, read_drafter_config
from dspark_build.export.facts import build_facts
from dspark_build.export.paged import compress, convert_target, save
from dspark_build.models.config import ModelConfig
from dspark_build.models.target import Target
from dspark_build.probe import exact_settings

PRECISIONS = ("fp32", "int8")


@dataclass(frozen=True)
class TargetSizes:
    """What a target is built for. The pool takes 8 · layers · kv_heads · head_size bytes a token, once touched."""

    max_context: int = 4096          # tokens of one sequence; cut to what the model was trained for
    max_slots: int = 32
    kv_tokens: int = 16384           # of all sequences together
    max_draft_tokens: int = 0        # of one request in one step; 0: the drafter's block size


def build_target(
    checkpoint: Path,
    drafter: Path,
    precision: str,
    out: Path,
    sizes: TargetSizes | None = None,
    allow_inexact: bool = False,
) -> TargetRecord:
    """Compile a checkpoint and a drafter's feature head into the folder `out`, which is replaced as a whole.

    precision: "fp32" | "int8" (weights). Raises ConfigurationError when checkpoint, drafter and sizes do not fit
    together, or when nothing makes the engine exact on this machine (unless `allow_inexact`).
    """
    if precision not in PRECISIONS:
        raise ConfigurationError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    config = read_drafter_config(drafter, checkpoint)
    target = Target.load(checkpoint)
    features = load_feature_head(drafter, config)
    record = TargetRecord(
        limits=_limits(target.config, config.block_size, sizes or TargetSizes()),
        layers=target.config.layers,
        kv_heads=target.config.kv_heads,
        head_size=target.config.head_size,
        tap_ids=features.tap_ids,
        rows=RowRules(ATTENTION_PADDING, min_rows_per_sequence=2, min_rows_per_run=2, max_rows_per_run=0),
        quantise_activations=precision == "int8",
        exact=False,
        facts=build_facts(checkpoint, drafter, precision),
    )
    with new_folder(out) as folder:
        save(compress(convert_target(target, features), precision), str(folder / ENGINE_GRAPH))
        del target, features
        record = settle_exactness(folder, record, allow_inexact)
        write_record(folder, record)
    return record


def settle_exactness(folder: Path, record: TargetRecord, allow_inexact: bool) -> TargetRecord:
    """The record with row rules under which logits do not depend on the batch on this machine.

    Raises ConfigurationError when there are none, unless `allow_inexact`.
    """
    settled, differences = exact_settings(folder, record)
    if settled.exact or allow_inexact:
        return settled
    found = "; ".join(f"{name}: {difference:.1g}" for name, difference in differences.items())
    raise ConfigurationError(
        f"logits depend on the batch on this machine (first differences: {found}), so plain and speculative decoding "
        "could differ in a near tie; build with --allow-inexact to accept that, or use --engine fp32"
    )


def _limits(config: ModelConfig, block_size: int, sizes: TargetSizes) -> TargetLimits:
    drafts = sizes.max_draft_tokens or block_size
    context = min(sizes.max_context, config.max_positions)
    blocks = sizes.kv_tokens // KV_BLOCK_SIZE
    if min(context, sizes.max_slots, blocks) < 1:
        raise ConfigurationError(f"{sizes}: context, slots and KV tokens must be at least 1, 1 and {KV_BLOCK_SIZE}")
    return TargetLimits(
        vocabulary_size=config.vocabulary_size,
        hidden_size=config.hidden_size,
        max_context=context,
        max_slots=sizes.max_slots,
        kv_block_size=KV_BLOCK_SIZE,
        kv_blocks=blocks,
        max_draft_tokens=drafts,
        spare_tokens=drafts,
    )
