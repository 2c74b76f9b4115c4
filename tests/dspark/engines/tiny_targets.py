"""Tiny random targets, built once a session, and steps for them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from dspark.engines.contract import Int32, SamplingArrays, TargetResult, TargetStep
from dspark.engines.openvino_target import OpenVinoTarget
from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
from dspark_build.export.target import TargetSizes, build_target
from dspark_build.tiny import make_tiny_target

GAMMA, VOCABULARY, HIDDEN, CONTEXT = 4, 320, 64, 256
TAPS = (-1, 0, 1)
SIZES = TargetSizes(max_context=CONTEXT, max_slots=6, kv_tokens=640)
_folder = tempfile.TemporaryDirectory(prefix="tiny-targets-")


@functools.cache
def checkpoints(flavour: str = "llama") -> tuple[Path, Path]:
    """Folders of a random target and of a drafter whose feature head tells the taps apart."""
    root = Path(tempfile.mkdtemp(dir=_folder.name))
    target = make_tiny_target(root / "target", flavour, vocabulary=VOCABULARY, hidden=HIDDEN)
    drafter = initialise_drafter(
        target, target_layer_ids=TAPS, start_layers=[1], block_size=GAMMA, mask_token_id=VOCABULARY - 1
    )
    with torch.no_grad():
        drafter.fc.weight.normal_(0, HIDDEN**-0.5, generator=torch.Generator().manual_seed(2))
    return target, save_drafter_checkpoint(drafter, root / "drafter", target)


@functools.cache
def built(flavour: str = "llama", precision: str = "fp32") -> Path:
    """The folder of a built engine."""
    out = Path(tempfile.mkdtemp(dir=_folder.name)) / "target"
    build_target(*checkpoints(flavour), precision, out, SIZES)
    return out


@functools.cache
def loaded(flavour: str = "llama", precision: str = "fp32") -> OpenVinoTarget:
    return OpenVinoTarget(built(flavour, precision))


def engine(flavour: str = "llama", precision: str = "fp32") -> OpenVinoTarget:
    """An engine whose slots are all free."""
    target = loaded(flavour, precision)
    target.step(step_of([], released=range(target.limits.max_slots)))
    assert target.free_blocks == target.limits.kv_blocks
    return target


@dataclass(frozen=True)
class Request:
    """One request's part of a step; `drafts` are its last tokens, each with all of its p^d on itself."""

    slot: int
    position: int
    tokens: Sequence[int]
    drafts: Sequence[int] = ()
    samples: bool = True
    features: bool = True
    log_probs: bool = True
    temperature: float = 0.0
    repetition_penalty: float = 1.0
    uniforms: Sequence[float] = field(default=(0.5,) * (GAMMA + 1))
    noise_keys: Sequence[int] = ()       # any: coupled


def step_of(requests: Sequence[Request], released: Sequence[int] | range = ()) -> TargetStep:
    """The step that brings all of `requests`."""
    drafts = [token for request in requests for token in request.drafts]
    count = len(requests)
    return TargetStep(
        slots=ints(request.slot for request in requests),
        positions=ints(request.position for request in requests),
        token_counts=ints(len(request.tokens) + len(request.drafts) for request in requests),
        draft_counts=ints(len(request.drafts) for request in requests),
        samples=np.array([request.samples for request in requests], np.bool_),
        wants_features=np.array([request.features for request in requests], np.bool_),
        wants_log_probs=np.array([request.log_probs for request in requests], np.bool_),
        tokens=ints(token for request in requests for token in [*request.tokens, *request.drafts]),
        draft_ids=ints(drafts).reshape(-1, 1),
        draft_probs=np.ones((len(drafts), 1), np.float32),
        sampling=SamplingArrays(
            temperature=np.array([request.temperature for request in requests], np.float32),
            top_k=np.zeros(count, np.int32),
            top_p=np.ones(count, np.float32),
            min_p=np.zeros(count, np.float32),
            repetition_penalty=np.array([request.repetition_penalty for request in requests], np.float32),
        ),
        uniforms=np.array([request.uniforms for request in requests], np.float32).reshape(count, GAMMA + 1),
        noise_keys=ints(
            key for request in requests for key in request.noise_keys or (0,) * (GAMMA + 1)
        ).reshape(count, GAMMA + 1),
        coupled=np.array([bool(request.noise_keys) for request in requests], np.bool_),
        released=ints(released),
    )


def features_of(result: TargetResult, r: int) -> np.ndarray:
    """The feature rows of request r."""
    ends = np.cumsum(result.feature_counts)
    return result.features[ends[r] - result.feature_counts[r] : ends[r]]


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


def ints(values: Iterable[int]) -> Int32:
    return np.array(list(values), np.int32)
