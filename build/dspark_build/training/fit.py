"""The fit stage: train a drafter on cached states, with exact resume (dspark-spec, section 3)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from dspark.errors import ConfigurationError
from torch import nn

from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.models.drafter import Drafter
from dspark_build.models.eagle import EagleDrafter
from dspark_build.progress import Progress, silent
from dspark_build.training.blocks import make_batch, sample_anchors
from dspark_build.training.curves import Curves
from dspark_build.training.data import TrainingData, TrainingSequence, load_data
from dspark_build.training.fit_config import FitConfig
from dspark_build.training.forward import batch_losses
from dspark_build.training.states import StateSource
from dspark_build.training.validation import Validation, validate
from dspark_build.training.vocabulary import TrainingVocabulary, choose_vocabulary

CHECKPOINT, CONFIG = "checkpoint.pt", "fit.json"


@dataclass(frozen=True)
class FitResult:
    """What a call of `fit_drafter` leaves; `finished` is false where its time ran out first."""

    finished: bool
    step: int
    block_tokens: int                # labels seen, all calls together
    block_tokens_per_second: float   # of this call, validation left out
    validation: Validation | None    # the last one


def fit_drafter(
    config: FitConfig,
    drafter: Drafter | EagleDrafter,
    progress: Progress = silent,
    on_validation: Callable[[int, Validation], None] | None = None,
) -> FitResult:
    """Train `drafter` in place, from its checkpoint in `config.output` where there is one.

    A resumed run continues exactly: its data, losses and weights are those of an uninterrupted one. Raises
    ConfigurationError for damaged data, or for a checkpoint of another configuration or other data.
    """
    torch.set_num_threads(config.threads)
    model = drafter.config
    source = StateSource(model.target_layer_ids, model.model.hidden_size, checkpoint_hash(config.target))
    data = load_data(config.responses, config.states, source, config.held_out)
    vocabulary = choose_vocabulary(
        data.train, model.model.vocabulary_size, config.frequent_tokens, config.sampled_tokens
    )
    config.output.mkdir(parents=True, exist_ok=True)
    (config.output / CONFIG).write_text(config.describe() + "\n")
    run = _Run(config, drafter.to(config.device).train(), data, vocabulary)
    run.resume()
    return run.train(progress, on_validation)


class _Run:
    """State of one training run: weights, optimiser, and how far it is."""

    def __init__(
        self,
        config: FitConfig,
        drafter: Drafter | EagleDrafter,
        data: TrainingData,
        vocabulary: TrainingVocabulary,
    ) -> None:
        self.config, self.drafter, self.data, self.vocabulary = config, drafter, data, vocabulary
        self.parameters = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
        trained = list(self.parameters.values())
        self.optimiser = torch.optim.AdamW(trained, lr=config.learning_rate, weight_decay=0.0, fused=True)
        self.step = 0
        self.block_tokens = 0
        self.validation: Validation | None = None

    @property
    def identity(self) -> str:
        d2t = self.drafter.d2t
        drafted = "" if d2t is None else hashlib.sha256(d2t.cpu().numpy().tobytes()).hexdigest()[:16]
        return f"{self.config.identity()} {self.data.fingerprint} {self.drafter.config} {drafted}"

    def resume(self) -> None:
        path = self.config.output / CHECKPOINT
        if not path.is_file():
            return
        try:
            stored = torch.load(path, map_location=self.config.device, weights_only=True)
        except Exception as error:       # torch raises whatever its reader stumbles over
            raise ConfigurationError(f"checkpoint {path} cannot be read ({error}); delete it to begin anew") from error
        if stored["identity"] != self.identity:
            raise ConfigurationError(
                f"checkpoint {path} belongs to another configuration or other data; choose another output folder, "
                "or save its drafter and start from that"
            )
        for name, parameter in self.parameters.items():
            parameter.data.copy_(stored["parameters"][name])
        self.optimiser.load_state_dict(stored["optimiser"])
        self.step, self.block_tokens = stored["step"], stored["block_tokens"]

    def save(self) -> None:
        values: dict[str, Any] = {
            "identity": self.identity,
            "parameters": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "block_tokens": self.block_tokens,
        }
        path = self.config.output / CHECKPOINT
        unfinished = path.with_suffix(".unfinished")
        torch.save(values, unfinished)
        os.replace(unfinished, path)

    def train(
        self, progress: Progress, on_validation: Callable[[int, Validation], None] | None
    ) -> FitResult:
        config = self.config
        curves = Curves(config.output, self.drafter.config.block_size, self.step)
        began, training_seconds, seen = time.monotonic(), 0.0, self.block_tokens
        in_time = True
        while self.step < config.steps and in_time:
            started = time.monotonic()
            row = self.one_step()
            training_seconds += time.monotonic() - started
            progress("training steps", self.step, config.steps)
            if self.step % config.log_every == 0:
                curves.add_losses(row)
            in_time = not config.seconds or time.monotonic() - began < config.seconds
            last = self.step == config.steps
            if self.data.held_out and (self.step % config.validate_every == 0 or last or not in_time):
                self.validate()
                curves.add_validation(self.step, self.block_tokens, self.validation)
                if on_validation:
                    on_validation(self.step, self.validation)
            if self.step % config.checkpoint_every == 0 or last or not in_time:
                self.save()
        self.vocabulary.fill_untrained_rows(self.drafter)
        rate = (self.block_tokens - seen) / training_seconds if training_seconds else 0.0
        return FitResult(self.step == config.steps, self.step, self.block_tokens, rate, self.validation)

    def one_step(self) -> list[float]:
        """One update; everything random in it follows from the seed and the step's number alone."""
        config, random = self.config, np.random.default_rng((self.config.seed, self.step))
        sequences = self.sequences_of(self.step)
        anchors = [sample_anchors(sequence, config.anchors_per_sequence, random) for sequence in sequences]
        batch = make_batch(sequences, anchors, self.drafter.config.block_size, config.window, config.device)
        part = self.vocabulary.part(batch.labels[batch.valid], random)
        rate = config.learning_rate_at(self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        with _precision(config):
            losses = batch_losses(self.drafter, batch, part, config.decay)
        loss = losses.total(config.loss_weights)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), config.clip)
        if not torch.isfinite(norm):
            raise ConfigurationError(f"the gradient is not finite at step {self.step}; lower learning_rate")
        self.optimiser.step()
        self.step += 1
        self.block_tokens += int(batch.valid.sum())
        return [self.step, self.block_tokens, loss.item(), *(value.item() for value in losses), norm.item(), rate]

    def sequences_of(self, step: int) -> list[TrainingSequence]:
        """The sequences of a step: every epoch is its own permutation of them all."""
        count, total = self.config.sequences_per_step, len(self.data.train)
        first = step * count
        chosen = []
        for epoch in range(first // total, (first + count - 1) // total + 1):
            order = np.random.default_rng((self.config.seed, epoch, total)).permutation(total)
            chosen += [self.data.train[i] for i in order[max(first - epoch * total, 0) : first + count - epoch * total]]
        return chosen

    def validate(self) -> None:
        """Validate the drafter as it would be shipped: rows that were never trained are filled first."""
        self.drafter.eval()
        with self._shipped():
            self.validation = validate(
                self.drafter,
                self.data.held_out,
                self.config.window,
                self.config.validation_anchors,
                self.config.device,
            )
        self.drafter.train()

    @contextlib.contextmanager
    def _shipped(self) -> Iterator[None]:
        if not self.drafter.config.markov_rank:
            yield
            return
        weight = self.drafter.markov_head.markov_w2.weight
        kept = weight.data
        weight.data = kept.clone()
        self.vocabulary.fill_untrained_rows(self.drafter)
        try:
            yield
        finally:
            weight.data = kept


def _precision(config: FitConfig) -> contextlib.AbstractContextManager[Any]:
    if config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(config.device).type, dtype=torch.bfloat16)

