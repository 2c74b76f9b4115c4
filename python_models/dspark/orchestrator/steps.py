"""From sequences to engine steps: plain functions that lay the state of several sequences out as arrays."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import (
    Bool,
    DrafterLimits,
    DrafterResult,
    DrafterStep,
    Float32,
    Int32,
    SamplingArrays,
    TargetStep,
)
from dspark.orchestrator import sequence as life
from dspark.orchestrator.randomness import Purpose
from dspark.verification import SamplingSettings

Float64 = npt.NDArray[np.float64]
Anchors = Sequence[tuple[life.Sequence, int]]    # with the positions of their anchors


class Source(enum.Enum):
    """Where a draft comes from."""

    DRAFTER = "drafter"
    LOOKUP = "lookup"


@dataclass(frozen=True)
class Draft:
    """One draft: tokens [n] with their distributions [n, K], predicted survival and calibrated confidence [gamma]."""

    source: Source
    tokens: Int32
    ids: Int32
    probs: Float32
    survival: Float64                # 0 beyond n
    confidence: Float64              # conditional, as calibrated but not corrected; of a lookup draft NaN

    @staticmethod
    def of_block(result: DrafterResult, r: int, survival: Float64, confidence: Float64) -> Draft:
        """Row r of the drafter's result."""
        return Draft(
            Source.DRAFTER, result.tokens[r], result.draft_ids[r], result.draft_probs[r], survival, confidence
        )

    @staticmethod
    def of_lookup(tokens: Int32, candidates: int, survival: Float64) -> Draft:
        """A lookup draft: p^d is 1 for its tokens."""
        ids = np.full((len(tokens), candidates), -1, np.int32)
        probs = np.zeros((len(tokens), candidates), np.float32)
        ids[:, 0], probs[:, 0] = tokens, 1.0
        return Draft(Source.LOOKUP, tokens, ids, probs, survival, np.full_like(survival, np.nan))


@dataclass(frozen=True)
class Turn:
    """What one sequence reads in one target step: a piece of its prompt, or its anchor and the drafts to verify."""

    sequence: life.Sequence
    tokens: Int32
    draft_count: int
    draft_ids: Int32                 # [draft_count, K]
    draft_probs: Float32             # [draft_count, K]
    samples: bool
    wants_features: bool
    reads_prompt: bool = False
    draft: Draft | None = None       # whose first draft_count tokens are verified
    window: int = 0                  # of those, how many may be committed: all, unless a diagnosis verifies more

    @property
    def source(self) -> Source | None:
        """Where the drafts come from; None without any."""
        return None if self.draft is None else self.draft.source

    @property
    def survival(self) -> Float64:
        """[draft_count] predicted for the drafts."""
        return np.empty(0) if self.draft is None else self.draft.survival[: self.draft_count]

    @property
    def drafts(self) -> Int32:
        return self.tokens[len(self.tokens) - self.draft_count :]


def drafter_step(sequences: Sequence[life.Sequence], limits: DrafterLimits, coupled: bool = False) -> DrafterStep:
    """Draft a block for every sequence, after appending the context that the drafter has not read yet."""
    anchors = [(sequence, sequence.committed) for sequence in sequences]
    context = [sequence.context.take() for sequence in sequences]
    return DrafterStep(
        slots=_ints(sequence.slot for sequence in sequences),
        anchors=_ints(sequence.anchor for sequence in sequences),
        positions=_ints(sequence.committed for sequence in sequences),
        context_counts=_ints(len(rows) for rows in context),
        drafts=np.ones(len(sequences), np.bool_),
        context=np.concatenate(context),
        temperatures=_floats(sequence.request.sampling.temperature for sequence in sequences),
        uniforms=_uniforms(anchors, Purpose.DRAFT, limits.block_size, coupled),
        noise_keys=_noise_keys(anchors, limits.block_size, coupled),
        coupled=np.full(len(sequences), coupled),
    )


def verification(
    sequence: life.Sequence, draft: Draft | None, length: int, window: int, candidates: int, wants_features: bool,
) -> Turn:
    """The turn of a decoding sequence: its anchor and the first `length` tokens of its draft, `window` to commit."""
    anchor = np.array([sequence.anchor], np.int32)
    if draft is None or not length:
        return Turn(sequence, anchor, 0, *_no_drafts(candidates), True, wants_features)
    return Turn(
        sequence, np.concatenate([anchor, draft.tokens[:length]]), length, draft.ids[:length], draft.probs[:length],
        True, wants_features, draft=draft, window=window,
    )


def prefill(sequence: life.Sequence, count: int, candidates: int, wants_features: bool) -> Turn:
    """The turn of a sequence that still reads its prompt: the next `count` tokens; the last of all is sampled after."""
    prompt, start = sequence.request.prompt, sequence.committed
    return Turn(
        sequence, prompt[start : start + count], 0, *_no_drafts(candidates),
        samples=start + count == len(prompt), wants_features=wants_features, reads_prompt=True,
    )


def target_step(turns: Sequence[Turn], released: Iterable[int], gamma: int, coupled: bool = False) -> TargetStep:
    """All turns as one step; `released` are the slots whose sequences ended since the last one."""
    anchors = [(turn.sequence, _anchor_position(turn)) for turn in turns]
    sequences = [turn.sequence for turn in turns]
    positions = [sequence.committed for sequence in sequences]
    return TargetStep(
        slots=_ints(sequence.slot for sequence in sequences),
        positions=_ints(positions),
        token_counts=_ints(len(turn.tokens) for turn in turns),
        draft_counts=_ints(turn.draft_count for turn in turns),
        samples=_flags(turn.samples for turn in turns),
        wants_features=_flags(turn.wants_features for turn in turns),
        wants_log_probs=_flags(sequence.request.return_log_probs for sequence in sequences),
        tokens=np.concatenate([turn.tokens for turn in turns]),
        draft_ids=np.concatenate([turn.draft_ids for turn in turns]),
        draft_probs=np.concatenate([turn.draft_probs for turn in turns]),
        sampling=sampling_arrays([sequence.request.sampling for sequence in sequences]),
        uniforms=_uniforms(anchors, Purpose.VERIFY, gamma + 1, coupled),
        noise_keys=_noise_keys(anchors, gamma + 1, coupled),
        coupled=np.full(len(turns), coupled),
        released=_ints(released),
    )


def sampling_arrays(settings: Sequence[SamplingSettings]) -> SamplingArrays:
    """The settings of R requests, one row a request."""
    return SamplingArrays(
        temperature=_floats(one.temperature for one in settings),
        top_k=_ints(one.top_k for one in settings),
        top_p=_floats(one.top_p for one in settings),
        min_p=_floats(one.min_p for one in settings),
        repetition_penalty=_floats(one.repetition_penalty for one in settings),
    )


def _uniforms(anchors: Anchors, purpose: Purpose, count: int, coupled: bool) -> Float32:
    """Uniforms [R, count]; zeros where noise takes their place."""
    if coupled:
        return np.zeros((len(anchors), count), np.float32)
    return np.stack([sequence.randomness.uniforms(position, purpose, count) for sequence, position in anchors])


def _noise_keys(anchors: Anchors, count: int, coupled: bool) -> Int32:
    """Keys [R, count] of the positions after each anchor; zeros where uniforms are drawn by."""
    if not coupled:
        return np.zeros((len(anchors), count), np.int32)
    return np.stack([sequence.randomness.noise_keys(position + 1, count) for sequence, position in anchors])


def _anchor_position(turn: Turn) -> int:
    """Position of the last token before the drafts: the anchor, or the last of a piece of prompt."""
    return turn.sequence.committed + len(turn.tokens) - turn.draft_count - 1


def _no_drafts(candidates: int) -> tuple[Int32, Float32]:
    return np.empty((0, candidates), np.int32), np.empty((0, candidates), np.float32)


def _ints(values: Iterable[int]) -> Int32:
    return np.fromiter(values, np.int32)


def _floats(values: Iterable[float]) -> Float32:
    return np.fromiter(values, np.float32)


def _flags(values: Iterable[bool]) -> Bool:
    return np.fromiter(values, np.bool_)
