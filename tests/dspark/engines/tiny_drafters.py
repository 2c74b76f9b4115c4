"""Tiny random drafters, built once a session, and the torch definition as their reference."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from dspark.engines.contract import DrafterResult, DrafterStep
from dspark_build.drafters import (
    initialise_drafter,
    load_drafter_checkpoint,
    reduce_vocabulary,
    save_drafter_checkpoint,
)
from dspark_build.export.drafter import DrafterSizes, build_drafter
from dspark_build.models.coupling import Noise
from dspark_build.models.drafter import Drafter
from dspark_build.tiny import make_tiny_target

GAMMA, WINDOW, SLOTS, HIDDEN = 3, 16, 9, 32
_folder = tempfile.TemporaryDirectory(prefix="tiny-drafters-")


@dataclass(frozen=True)
class Case:
    """What a tiny drafter is made of; 4500 tokens need the two-stage search for candidates, 40 are fewer than K."""

    head: str = "vanilla"
    flavour: str = "llama"
    vocabulary: int = 320
    confidence: bool = True
    precision: str = "fp32"
    drafted: int = 0                 # Vd, every other token from 1 on; 0: all


@functools.cache
def checkpoints(case: Case) -> tuple[Path, Path]:
    """Folders of a random target and of a drafter for it, whose heads matter as much as its backbone."""
    root = Path(tempfile.mkdtemp(dir=_folder.name))
    target = make_tiny_target(
        root / "target", case.flavour, vocabulary=case.vocabulary, hidden=HIDDEN, intermediate=48, head_size=8
    )
    drafter = initialise_drafter(
        target,
        target_layer_ids=[-1, 1],
        start_layers=[0, 1],
        block_size=GAMMA,
        markov_head_type=case.head,
        markov_rank=12,
        confidence_head=case.confidence,
        mask_token_id=case.vocabulary - 1,
    )
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.startswith(("markov_head", "confidence_head")):
                parameter.normal_(0, 0.6, generator=random)
    if case.drafted:
        drafter = reduce_vocabulary(drafter, np.arange(1, 1 + 2 * case.drafted, 2))
    return target, save_drafter_checkpoint(drafter, root / "drafter", target)


@functools.cache
def built(case: Case) -> Path:
    """The folder of the case's engine."""
    target, drafter = checkpoints(case)
    out = drafter.with_name("engine") / "drafter"
    build_drafter(drafter, target, case.precision, out, DrafterSizes(max_slots=SLOTS, window=WINDOW))
    return out


def definition(case: Case) -> Drafter:
    target, drafter = checkpoints(case)
    return load_drafter_checkpoint(drafter, target)


def make_step(
    slots: Sequence[int],
    positions: Sequence[int],
    context: Sequence[np.ndarray],
    *,
    drafts: Sequence[bool] | None = None,
    temperatures: Sequence[float] | float = 1.0,
    seed: int = 0,
    vocabulary: int = 40,
    coupled: Sequence[bool] | bool = False,
) -> DrafterStep:
    """A step whose anchors, uniforms and noise follow from `seed` and the slot, whatever the company."""
    rows = len(slots)
    own = [np.random.default_rng([seed, slot]) for slot in slots]
    return DrafterStep(
        slots=np.array(slots, np.int32),
        anchors=np.array([random.integers(0, vocabulary) for random in own], np.int32),
        positions=np.array(positions, np.int32),
        context_counts=np.array([len(part) for part in context], np.int32),
        drafts=np.ones(rows, np.bool_) if drafts is None else np.array(drafts, np.bool_),
        context=np.concatenate([np.zeros((0, HIDDEN), np.float32), *context]),
        temperatures=np.broadcast_to(np.float32(temperatures), rows).copy(),
        uniforms=np.stack([random.random(GAMMA, np.float32) for random in own]) if rows else np.zeros((0, GAMMA), "f4"),
        noise_keys=np.array([random.integers(-(2**31), 2**31, GAMMA) for random in own], np.int32).reshape(rows, GAMMA),
        coupled=np.broadcast_to(np.array(coupled, np.bool_), rows).copy(),
    )


def feature_rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng([7, seed]).standard_normal((count, HIDDEN)).astype(np.float32)


def expected_block(drafter: Drafter, step: DrafterStep, row: int, features: np.ndarray) -> DrafterResult:
    """What the torch definition drafts for one request from all its feature rows: afresh over the last W."""
    first = max(0, len(features) - WINDOW)
    rows = torch.from_numpy(features[first:])[None]
    with torch.no_grad():
        block = drafter.draft(
            torch.from_numpy(step.anchors[row : row + 1]).long(),
            torch.from_numpy(step.positions[row : row + 1]),
            drafter.context_keys_values(rows, torch.arange(first, len(features))[None]),
            torch.ones(1, rows.shape[1], dtype=torch.bool),
            torch.from_numpy(step.temperatures[row : row + 1]),
            torch.from_numpy(step.uniforms[row : row + 1]),
            Noise(torch.from_numpy(step.noise_keys[row : row + 1]), torch.from_numpy(step.coupled[row : row + 1])),
        )
    return DrafterResult(*(field.numpy()[0] for field in block))


def dense(ids: np.ndarray, probabilities: np.ndarray, vocabulary: int) -> np.ndarray:
    """p^d over the whole vocabulary, [gamma, V]."""
    full = np.zeros((len(ids), vocabulary), np.float32)
    np.put_along_axis(full, ids.astype(np.int64), probabilities, 1)
    return full
