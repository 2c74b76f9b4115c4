"""An engine that writes down what it thinks: the target with its tapped layers and last hidden state as features.

Training data are made with it: responses and the states that a drafter learns from come out of one pass. It is built
like a serving engine, but not probed for exactness, which data do not need.
"""

from __future__ import annotations

from pathlib import Path

import torch
from dspark.engines.contract import TargetLimits
from dspark.engines.engine_json import ENGINE_GRAPH, TargetRecord, read_record, write_record
from dspark.engines.paged_graph import KV_BLOCK_SIZE
from dspark.engines.rows import ATTENTION_PADDING, RowRules
from dspark.errors import ConfigurationError
from torch import Tensor, nn

from dspark_build.checkpoints.form import new_folder
from dspark_build.export.facts import build_facts
from dspark_build.export.paged import compress, convert_target, save
from dspark_build.models.config import ModelConfig
from dspark_build.models.target import EMBEDDING_TAP, Target

# Rows that go through the graph at once: on two AVX2 cores 64 rows take 136 ms, 96 take 224 (kernels change between).
ROWS = RowRules(ATTENTION_PADDING, min_rows_per_sequence=1, min_rows_per_run=1, max_rows_per_run=64)


class RecordedStates(nn.Module):
    """In the place of the drafter's feature head: tapped layer outputs, then the last layer's, as they are."""

    def __init__(self, tap_ids: tuple[int, ...], layers: int) -> None:
        super().__init__()
        self.tap_ids = (*tap_ids, layers - 1)

    def forward(self, tapped: Tensor) -> Tensor:
        return tapped


def build_recording_engine(
    checkpoint: Path, tap_ids: tuple[int, ...], precision: str, out: Path, slots: int, tokens_per_slot: int
) -> TargetRecord:
    """The recording engine in folder `out`, built unless it is there from the same inputs.

    Its features are [., (m + 1) d], its KV pool holds `slots` sequences of `tokens_per_slot` tokens. Raises
    ConfigurationError for taps that the target does not have.
    """
    config = ModelConfig.read(checkpoint)
    for tap in tap_ids:
        if not EMBEDDING_TAP <= tap < config.layers:
            raise ConfigurationError(f"tap {tap} must lie between -1 and {config.layers - 1}, the target's last layer")
    context = min(tokens_per_slot, config.max_positions)
    record = TargetRecord(
        limits=TargetLimits(
            vocabulary_size=config.vocabulary_size,
            hidden_size=(len(tap_ids) + 1) * config.hidden_size,
            max_context=context,
            max_slots=slots,
            kv_block_size=KV_BLOCK_SIZE,
            kv_blocks=slots * -(-(context + 1) // KV_BLOCK_SIZE),
            max_draft_tokens=0,
            spare_tokens=1,
        ),
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        tap_ids=(*tap_ids, config.layers - 1),
        rows=ROWS,
        quantise_activations=precision == "int8",
        exact=False,
        facts=build_facts(checkpoint, None, precision),
    )
    if _built(out) == record:
        return record
    target = Target.load(checkpoint)
    with new_folder(out) as folder, torch.no_grad():
        graph = convert_target(target, RecordedStates(tap_ids, config.layers))
        save(compress(graph, precision), str(folder / ENGINE_GRAPH))
        write_record(folder, record)
    return record


def _built(folder: Path) -> TargetRecord | None:
    try:
        return read_record(folder, TargetRecord)
    except ConfigurationError:
        return None
