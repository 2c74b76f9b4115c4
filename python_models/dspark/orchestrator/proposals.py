"""From sequences to a scheduler's view of them: what each could draft, and what to expect of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.drafting import LookupDraft
from dspark.engines.contract import Float32, Int32
from dspark.orchestrator import sequence as life
from dspark.orchestrator.steps import Draft, Float64, Source, Turn
from dspark.scheduling import AcceptanceMemory, Batch, Plan, conditional

NO_LOOKUP = LookupDraft(np.zeros(0, np.int32), 0)
Lookups = Mapping[life.Sequence, LookupDraft]


@dataclass(frozen=True)
class Proposals:
    """The drafts of one round, and the plan that they were made by."""

    sequences: Sequence[life.Sequence]       # [R] those of the batch
    batch: Batch
    plan: Plan
    lookups: Lookups                 # found, whether used or not
    drafts: dict[life.Sequence, Draft]


def scheduling_batch(
    sequences: Sequence[life.Sequence], lookups: Lookups, memory: AcceptanceMemory, riding: Sequence[Turn],
) -> Batch:
    """The decoding sequences as a policy sees them, with the prompts that ride in the same target step."""
    found = [lookups.get(sequence, NO_LOOKUP) for sequence in sequences]
    behind = [sequence.committed for sequence in sequences]
    return Batch(
        limits=np.array([max(0, sequence.draft_limit) for sequence in sequences], np.int32),
        floors=np.array([sequence.draft_floor for sequence in sequences], np.int32),
        lookup=np.stack([
            memory.lookups.survival(draft.match_length, len(draft.tokens), sequence.greedy, sequence.lookups)
            for sequence, draft in zip(sequences, found, strict=True)
        ]),
        lookup_lengths=np.array([len(draft.tokens) for draft in found], np.int32),
        expected=np.stack([memory.blocks.survival(sequence.greedy, sequence.blocks) for sequence in sequences]),
        blocks=np.array([sequence.blocks.blocks for sequence in sequences], np.int32),
        context=float(np.mean(behind)),
        riding_sequences=len(riding),
        riding_tokens=sum(len(turn.tokens) for turn in riding),
        riding_samples=sum(turn.samples for turn in riding),
    )


def block_confidence(
    sequences: Sequence[life.Sequence], logits: Float32, temperatures: Float64 | None, memory: AcceptanceMemory,
    learns: bool,
) -> tuple[Float64, Float64]:
    """Confidence [R, gamma] of drafted blocks, as calibrated, and the survival that it comes to with what was learnt.

    The correction depends on earlier rounds only, so a length rule may look at the result (dspark-spec, section 5).
    """
    calibrated = conditional(logits, temperatures)
    if not learns:
        return calibrated, calibrated.cumprod(axis=1)
    corrections = np.stack([memory.drift[sequence.greedy].corrections() for sequence in sequences])
    corrected = np.clip(calibrated * corrections, 0.0, 1.0)
    for sequence, row in zip(sequences, corrected, strict=True):
        memory.blocks.observe(row, sequence.greedy, sequence.blocks)
    return calibrated, corrected.cumprod(axis=1)


def draft_lengths(sequences: Sequence[life.Sequence], proposals: Proposals, gamma: int) -> Int32:
    """Drafts to verify [R] of `sequences`, those of the plan that are left: by its rule, and at least its floors."""
    planned = dict(zip(proposals.sequences, range(len(proposals.sequences)), strict=True))
    rows = np.array([planned[sequence] for sequence in sequences])
    limits, survivals = np.zeros(len(sequences), np.int32), np.zeros((len(sequences), gamma))
    for r, sequence in enumerate(sequences):
        if (draft := proposals.drafts.get(sequence)) is not None:
            limits[r] = min(int(proposals.batch.limits[rows[r]]), len(draft.tokens))
            survivals[r] = draft.survival
    lengths = proposals.plan.rule.lengths(survivals, limits)
    return np.maximum(lengths, np.minimum(proposals.plan.floors[rows], limits))


def whole_drafts(sequences: Sequence[life.Sequence], proposals: Proposals) -> Int32:
    """All draft tokens there are [R] of `sequences`, within their own limits: what a diagnosis verifies."""
    drafts = [proposals.drafts.get(sequence) for sequence in sequences]
    return np.array([
        0 if draft is None else min(len(draft.tokens), max(0, sequence.draft_limit))
        for sequence, draft in zip(sequences, drafts, strict=True)
    ], np.int32)


def learn(turn: Turn, lookup: LookupDraft, tokens: list[int], accepted: int, memory: AcceptanceMemory) -> None:
    """What a round says about its drafts: `tokens` are those that it put out, the first `accepted` of them drafts."""
    sequence = turn.sequence
    if turn.draft is not None and turn.draft.source is Source.DRAFTER:
        memory.drift[sequence.greedy].observe(turn.draft.confidence, turn.draft_count, accepted)
    if len(lookup.tokens):
        judged = min(len(tokens), len(lookup.tokens))
        right = int(np.logical_and.accumulate(lookup.tokens[:judged] == tokens[:judged]).sum())
        memory.lookups.observe(lookup.match_length, right, min(judged, right + 1), sequence.greedy, sequence.lookups)
