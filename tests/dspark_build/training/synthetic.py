"""What these tests train on: a language in which every token has exactly one successor, its states made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.models.target import Target
from dspark_build.tiny import make_tiny_target
from dspark_build.training.data import TrainingSequence
from dspark_build.training.responses import Responses, write_responses
from dspark_build.training.states import StateSource, create_states, seal_states

TAPS = (0, 1)
VOCABULARY, HIDDEN = 48, 64         # d > V, so that any logits have a hidden state
PROMPT, LENGTH = 5, 40
SHARPNESS = 12.0                     # logit of the successor


def make_tiny_checkpoint(folder: Path) -> Path:
    return make_tiny_target(
        folder, vocabulary=VOCABULARY, hidden=HIDDEN, heads=2, kv_heads=1, head_size=16, intermediate=48, sharpness=1.0
    )


def make_training_data(root: Path, sequences: int = 48, shards: int = 2) -> tuple[Path, Path, Path]:
    """Checkpoint, responses and states of the synthetic language below `root`."""
    checkpoint = make_tiny_checkpoint(root / "target")
    target = Target.load(checkpoint)
    order = np.random.default_rng(3).permutation(VOCABULARY)                 # one cycle through all tokens
    successor = np.empty_like(order)
    successor[order] = np.roll(order, -1)
    inverse = torch.linalg.pinv(target.lm_head.weight.double()).numpy()      # hidden state of any wished logits
    source = StateSource(TAPS, HIDDEN, checkpoint_hash(checkpoint))
    random = np.random.default_rng(4)
    for number in range(shards):
        rows = [_sentence(int(random.integers(VOCABULARY)), successor) for _ in range(sequences // shards)]
        responses = _responses(rows, number, sequences // shards)
        write_responses(root / "responses", number, responses)
        states = create_states(root / "states", number, len(responses.tokens), source)
        states.taps[:] = np.tile(target.embed_tokens.weight[torch.from_numpy(responses.tokens).long()].numpy(), 2)
        wished = np.zeros((len(responses.tokens), VOCABULARY))
        wished[np.arange(len(wished)), successor[responses.tokens]] = SHARPNESS
        states.last[:] = wished @ inverse.T
        logits = target.lm_head.weight.double().numpy() @ states.last.astype(np.float64).T
        states.log_z[:] = np.log(np.exp(logits).sum(0))
        seal_states(root / "states", number, states)
    return checkpoint, root / "responses", root / "states"


def _sentence(first: int, successor: np.ndarray) -> np.ndarray:
    tokens = [first]
    while len(tokens) < LENGTH:
        tokens.append(int(successor[tokens[-1]]))
    return np.array(tokens, np.int32)


def _responses(rows: list[np.ndarray], shard: int, count: int) -> Responses:
    return Responses(
        tokens=np.concatenate(rows),
        lengths=np.full(count, LENGTH, np.int32),
        prompt_lengths=np.full(count, PROMPT, np.int32),
        temperatures=np.array([0.0, 1.0] * (count // 2), np.float32),
        samples=np.zeros(count, np.int32),
        ids=np.array([f"sentence/{shard}/{i}" for i in range(count)]),
        domains=np.array(["chat"] * count),
    )


def counting_sequence(length: int, prompt: int, first_token: int = 100) -> TrainingSequence:
    """A sequence whose token, tap, hidden state and log_z tell its position."""
    rows = np.arange(length)
    return TrainingSequence(
        id="x", domain="chat", temperature=0.0, prompt_length=prompt,
        tokens=(first_token + rows).astype(np.int32),
        taps=np.repeat(rows[:, None], 4, 1).astype(np.float16)[:, None],
        last=np.repeat(rows[:, None], 2, 1).astype(np.float16),
        log_z=rows.astype(np.float32),
        tap_places=(0,),
    )  # fmt: skip
