"""Recorded rounds replayed through step times and the product's own policies, without an engine.

R streams, always R: each replays a recorded sequence, round by round, and then another one. A simulated round takes
drafter_seconds + target_seconds of its size, and brings each stream 1 + min(accepted, length) tokens, `accepted` being
what the target accepted of the whole block when it was recorded. Assumed with that:
- a stream that was cut short goes on with the next recorded block, as if blocks were drawn alike (policies that verify
  whole blocks replay the recording exactly);
- there are no prompts to read, and no host time between steps;
- prompt lookup cannot be replayed, for records hold no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from dspark.engines.contract import Float32, Int32
from dspark.scheduling import AcceptanceMemory, Batch, BlockRecord, Plan, Policy, StepCosts, conditional

Float64 = npt.NDArray[np.float64]
PROMPT_TOKENS = 100.0                # context that a sequence begins with


@dataclass(frozen=True)
class RecordedSequence:
    """One answer, block by block, recorded with whole blocks verified."""

    domain: str
    greedy: bool
    logits: Float32                  # [rounds, gamma] confidence
    accepted: Int32                  # [rounds] drafts accepted of each whole block


@dataclass
class Stream:
    """One of the R places: what it replays, and what the scheduler remembers of it."""

    order: Iterator[RecordedSequence]
    playing: RecordedSequence
    round: int = 0
    committed: float = PROMPT_TOKENS
    blocks: BlockRecord = field(default_factory=BlockRecord)

    def advance(self, tokens: int) -> None:
        """Go to the next block, or to the beginning of the next sequence."""
        self.round += 1
        self.committed += tokens
        if self.round == len(self.playing.accepted):
            self.playing, self.round, self.committed, self.blocks = next(self.order), 0, PROMPT_TOKENS, BlockRecord()


@dataclass(frozen=True)
class SimulatedRound:
    """One round of all streams."""

    seconds: float
    tokens: Int32                    # [R]
    lengths: Int32                   # [R] drafts verified
    drafted: int                     # draft tokens, of blocks of gamma


class Simulation:
    """A policy with the record of one server, over streams that replay `recordings` in an order of `seed`.

    The same seed gives every policy the same sequences in the same places. `temperatures` [gamma] calibrate the logits.
    """

    def __init__(
        self, policy: Policy, costs: StepCosts, recordings: Sequence[RecordedSequence], streams: int, seed: int,
        temperatures: Float64 | None = None,
    ) -> None:
        self._policy = policy
        self._costs = costs
        self._temperatures = temperatures
        self._gamma = recordings[0].logits.shape[1]
        self._memory = AcceptanceMemory(self._gamma)
        orders = [_shuffled(recordings, np.random.default_rng([seed, number])) for number in range(streams)]
        self._streams = [Stream(order, next(order)) for order in orders]

    def round(self) -> SimulatedRound:
        """Plan, draft, schedule, verify and learn, as the round loop does."""
        streams, memory = self._streams, self._memory
        plan = self._policy.plan(self._batch())
        confidence, survival = self._confidence(plan)
        limits = np.where(plan.drafter, self._gamma, 0).astype(np.int32)
        lengths = np.maximum(plan.rule.lengths(survival, limits), np.minimum(plan.floors, limits))
        seconds = self._seconds(int(plan.drafter.sum()), int(lengths.sum()))
        accepted = np.array([stream.playing.accepted[stream.round] for stream in streams], np.int32)
        for r in np.flatnonzero(plan.drafter):
            judged = min(int(accepted[r]), int(lengths[r]))
            memory.drift[streams[r].playing.greedy].observe(confidence[r], int(lengths[r]), judged)
        tokens = 1 + np.minimum(accepted, lengths)
        for stream, count in zip(streams, tokens.tolist(), strict=True):
            stream.advance(count)
        return SimulatedRound(seconds, tokens, lengths, int(limits.sum()))

    def _batch(self) -> Batch:
        size = len(self._streams)
        expected = [
            self._memory.blocks.survival(stream.playing.greedy, stream.blocks) for stream in self._streams
        ]
        return Batch(
            limits=np.full(size, self._gamma, np.int32), floors=np.zeros(size, np.int32),
            lookup=np.zeros((size, self._gamma)), lookup_lengths=np.zeros(size, np.int32),
            expected=np.stack(expected), blocks=np.array([stream.blocks.blocks for stream in self._streams], np.int32),
            context=self._context(),
        )

    def _confidence(self, plan: Plan) -> tuple[Float64, Float64]:
        """Of the drafted blocks: confidence as calibrated, and survival with what was learnt; 0 of the others."""
        streams = self._streams
        logits = np.stack([stream.playing.logits[stream.round] for stream in streams])
        calibrated = conditional(logits, self._temperatures)
        corrected = calibrated
        if self._policy.learns:
            corrections = [self._memory.drift[stream.playing.greedy].corrections() for stream in streams]
            corrected = np.clip(calibrated * np.stack(corrections), 0.0, 1.0)
            for r in np.flatnonzero(plan.drafter):
                self._memory.blocks.observe(corrected[r], streams[r].playing.greedy, streams[r].blocks)
        return calibrated, np.where(plan.drafter[:, None], corrected.cumprod(axis=1), 0.0)

    def _seconds(self, drafting: int, drafts: int) -> float:
        size = len(self._streams)
        target = self._costs.target_seconds(size, np.array([size + drafts]), self._context())[0]
        return float(target) + (self._costs.drafter_seconds(drafting) if drafting else 0.0)

    def _context(self) -> float:
        return float(np.mean([stream.committed for stream in self._streams]))


def _shuffled(recordings: Sequence[RecordedSequence], random: np.random.Generator) -> Iterator[RecordedSequence]:
    while True:
        yield recordings[int(random.integers(len(recordings)))]
