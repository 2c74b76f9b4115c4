"""A target that decodes many sequences at once and hands out the hidden states it passes through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from dspark.engines.contract import Float32, Int32, TargetLimits
from dspark.engines.engine_json import TargetRecord, read_record
from dspark.engines.paged_runner import PagedRunner, RaggedBatch
from dspark.engines.rows import begins


@dataclass(frozen=True)
class Recording:
    """What one step leaves; views that the next step overwrites."""

    logits: Float32                  # [R, V] after each sequence's last token
    states: Float32                  # [T, (m + 1) d] tapped layers and the last layer, before the final norm


class Decoder(Protocol):
    """What the generate stage needs of a target."""

    limits: TargetLimits

    def step(self, batch: RaggedBatch) -> Recording:
        """Read new tokens of R sequences."""
        ...

    def release(self, slots: Iterable[int]) -> None:
        """Forget what these slots hold."""
        ...


class Recorder:
    """A recording engine (export/recording.py) loaded. Raises ConfigurationError when the folder cannot be loaded."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        record = read_record(folder, TargetRecord)
        self.limits = record.limits
        self._runner = PagedRunner(folder, record, record.rows, threads)

    def step(self, batch: RaggedBatch) -> Recording:
        """Raises EngineError when the KV pool is exhausted or OpenVINO fails."""
        last: Int32 = begins(batch.token_counts)[1:] - 1
        outputs = self._runner.run(batch, last, np.arange(batch.tokens.size, dtype=np.int32))
        return Recording(outputs.logits, outputs.features)

    def release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._runner.blocks.release(slot)
