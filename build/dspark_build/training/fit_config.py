"""What a training run is told: one frozen record, printed at the start and kept beside its checkpoints."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from dspark.errors import ConfigurationError

POSITIVE = ("steps", "sequences_per_step", "anchors_per_sequence", "window", "learning_rate", "clip", "decay",
            "log_every", "validate_every", "checkpoint_every", "validation_anchors", "threads")
PRECISIONS = ("fp32", "bf16")
# What may differ when a run is resumed. `steps` too: the plateau is the same for runs of any length, so a run whose
# time is up sooner than planned is resumed with fewer steps and cools down; the others change no number.
FREE_ON_RESUME = ("steps", "seconds", "checkpoint_every", "threads", "log_every")


@dataclass(frozen=True)
class FitConfig:
    """Settings of the fit stage. Raises ConfigurationError naming the field that is out of range.

    The published recipe is lr 6e-4, 4% of the steps for warm-up, clip 1, 512 sequences a step and up to 512 anchors
    each; small machines scale the last two down.
    """

    target: Path                     # the target's checkpoint folder
    responses: Path                  # folder of the generate stage
    states: Path                     # folder of the cache stage
    output: Path                     # checkpoints and curves
    steps: int = 2000
    sequences_per_step: int = 4
    anchors_per_sequence: int = 32
    window: int = 256                # context rows a block sees, as in serving
    decay: float = 4.0               # of the position weights w_k
    loss_weights: tuple[float, float, float] = (0.1, 0.9, 1.0)
    learning_rate: float = 6e-4
    warm_up_steps: int = 60
    cool_down: float = 0.2           # fraction of the steps at the end, linearly to 0
    clip: float = 1.0                # largest norm of the gradient
    frequent_tokens: int = 4096      # vocabulary part; 0: all of V
    sampled_tokens: int = 2048       # drawn each step from the others; 0: they are never trained
    held_out: float = 0.05           # fraction of the prompts
    precision: str = "fp32"          # of matrix products; "bf16" where the machine has it
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    seconds: float = 0.0             # stop and save after this time; 0: run all steps
    log_every: int = 10
    validate_every: int = 200
    validation_anchors: int = 8      # blocks a held-out sequence
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("cool_down", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is a fraction in [0, 1), not {getattr(self, name)}")
        for name in ("warm_up_steps", "frequent_tokens", "sampled_tokens", "seconds"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ConfigurationError(f"precision {self.precision!r} is unknown; known: {', '.join(PRECISIONS)}")
        if len(self.loss_weights) != 3 or min(self.loss_weights) < 0:
            raise ConfigurationError(f"loss_weights are three numbers of at least 0, not {self.loss_weights}")

    def describe(self) -> str:
        """All fields as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, default=str)

    def identity(self) -> str:
        """All fields that decide the numbers of a run: a run is resumed only under the same ones."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in FREE_ON_RESUME}
        return json.dumps(fields, default=str)

    def learning_rate_at(self, step: int) -> float:
        """Warm-up, plateau, then linearly down; `step` counts from 0."""
        rising = (step + 1) / max(1, self.warm_up_steps)
        falling = (self.steps - step) / max(1, round(self.cool_down * self.steps))
        return self.learning_rate * min(1.0, rising, falling)
