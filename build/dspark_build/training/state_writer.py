"""States that come with the responses, written shard by shard as the responses are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dspark.engines.contract import Float32
from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.models.config import ModelConfig
from dspark_build.models.weights import read_tensors
from dspark_build.training.answers import Answer, Float16
from dspark_build.training.states import StateSource, check_room, create_states, seal_states

FINAL_NORM = "norm.weight"


@dataclass(frozen=True)
class StateWriter:
    """Turns recorded rows, tapped layers and last layer side by side, into state shards."""

    folder: Path
    source: StateSource
    norm_weight: Float32             # [d] of the target's final RMSNorm
    norm_epsilon: float

    @staticmethod
    def for_target(checkpoint: Path, tap_ids: tuple[int, ...], folder: Path) -> StateWriter:
        """Raises ConfigurationError when the checkpoint has no final norm."""
        config = ModelConfig.read(checkpoint)
        weights = [tensor for name, tensor in read_tensors(checkpoint) if name.removeprefix("model.") == FINAL_NORM]
        if not weights:
            raise ConfigurationError(f"{checkpoint}: tensor {FINAL_NORM} is missing")
        source = StateSource(tap_ids, config.hidden_size, checkpoint_hash(checkpoint))
        return StateWriter(folder, source, weights[0].float().numpy(), config.norm_epsilon)

    def check_room(self, rows: int) -> None:
        """Raises ConfigurationError when the disk cannot hold the states of so many tokens."""
        check_room(self.folder, rows, self.source)

    def write(self, number: int, answers: Sequence[Answer]) -> None:
        """The states of one response shard. Raises OSError when the disk is full; the shard then is not there."""
        rows = sum(len(answer.tokens) for answer in answers)
        states = create_states(self.folder, number, rows, self.source)
        width = len(self.source.tap_ids) * self.source.hidden_size
        states.log_z[:] = np.nan
        first = 0
        for answer in answers:
            recorded = np.concatenate(answer.states)               # the last token was never read: its rows stay 0
            states.taps[first : first + len(recorded)] = recorded[:, :width]
            states.last[first : first + len(recorded)] = self._normalised(recorded[:, width:])
            predicting = first + answer.prompt_length - 1
            states.log_z[predicting : predicting + len(answer.log_z)] = answer.log_z
            first += len(answer.tokens)
        seal_states(self.folder, number, states)

    def _normalised(self, hidden: Float16) -> npt.NDArray[np.float32]:
        values = hidden.astype(np.float32)
        scale = 1 / np.sqrt((values**2).mean(-1, keepdims=True) + self.norm_epsilon)
        return values * scale * self.norm_weight
