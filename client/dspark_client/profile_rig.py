"""The engines of a profile, with slots filled, and steps as serving makes them: greedy, with drafts and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from dspark.engines.contract import DrafterEngine, DrafterStep, Float32, Int32, TargetEngine, TargetStep
from dspark.engines.warm_up import blank_step

from dspark_client.profile_sizes import Size, SlotPlan, TargetSize

Clock = Callable[[], float]

PROMPT_CHUNK = 128                   # tokens of a step that fills slots
APPENDED = 2                         # context rows that a round adds to a sequence


class Rig:
    """Runs steps of any size and says how long each took; only the engine's own `step` is timed."""

    def __init__(
        self, target: TargetEngine, drafter: DrafterEngine, slots: SlotPlan, clock: Clock, random: np.random.Generator
    ) -> None:
        self.target = target
        self.drafter = drafter
        self._slots = slots
        self.clock = clock
        self._random = random
        self._contexts = np.zeros(slots.short_slots + slots.long_slots, np.int32)      # that a step finds
        self._drafter_positions = np.zeros(drafter.limits.max_slots, np.int32)

    def fill(self) -> Iterator[float]:
        """Give every slot its context, in steps; yields the share that is done. May be left once `ready`."""
        plan = self._slots
        wanted = np.full(self._contexts.size, plan.short_context)
        total = wanted.sum() + plan.long_slots * (plan.long_context - plan.short_context)
        for context in (plan.short_context, plan.long_context):
            while (lacking := np.flatnonzero(self._contexts < wanted)).size:
                slot = lacking[self._contexts[lacking].argmin()]       # in turns, so that all get equally far
                count = min(PROMPT_CHUNK, wanted[slot] - self._contexts[slot])
                self.target.step(self._prompt_step(int(slot), int(self._contexts[slot]), int(count)))
                self._contexts[slot] += count
                yield float(self._contexts.sum() / total)
            if context == plan.short_context:
                wanted[plan.short_slots :] = plan.long_context

    @property
    def ready(self) -> bool:
        """All slots have at least the short context."""
        return bool((self._contexts >= self._slots.short_context).all())

    def context(self, size: TargetSize) -> float:
        """Mean tokens behind the sequences of such a step."""
        return float(self._contexts[self._chosen(size)].mean())

    def seconds(self, size: Size) -> float:
        """Run one step of that size."""
        if isinstance(size, TargetSize):
            target_step = self._target_step(size)
            started = self.clock()
            self.target.step(target_step)
            return self.clock() - started
        drafter_step = self._drafter_step(size.sequences)
        started = self.clock()
        self.drafter.step(drafter_step)
        return self.clock() - started

    def _chosen(self, size: TargetSize) -> Int32:
        first = self._slots.short_slots if size.long else 0
        return np.arange(first, first + size.sequences, dtype=np.int32)

    def _target_step(self, size: TargetSize) -> TargetStep:
        """All sequences bring about as many tokens, anchor and drafts; or one reads a prompt and nobody has drafts."""
        limits, chosen = self.target.limits, self._chosen(size)
        counts = np.full(size.sequences, size.tokens // size.sequences, np.int32)
        counts[: size.tokens % size.sequences] += 1
        drafts = counts - 1
        if counts.max() > limits.max_draft_tokens + 1:
            counts = np.ones(size.sequences, np.int32)
            counts[0] = size.tokens - (size.sequences - 1)
            drafts = 0 * counts
        candidates = self.drafter.limits.candidates
        probabilities = self._random.random((drafts.sum(), candidates), np.float32)
        return self._step(
            chosen, self._contexts[chosen], counts, drafts, samples=True,
            draft_ids=self._random.integers(0, limits.vocabulary_size, probabilities.shape, np.int32),
            draft_probs=probabilities / probabilities.sum(axis=1, keepdims=True),
        )

    def _prompt_step(self, slot: int, position: int, count: int) -> TargetStep:
        one = np.ones(1, np.int32)
        return self._step(
            slot * one, position * one, count * one, 0 * one, samples=False,
            draft_ids=np.zeros((0, 1), np.int32), draft_probs=np.zeros((0, 1), np.float32),
        )

    def _step(
        self, slots: Int32, positions: Int32, counts: Int32, drafts: Int32, samples: bool, draft_ids: Int32,
        draft_probs: Float32,
    ) -> TargetStep:
        size, limits = slots.size, self.target.limits
        return replace(
            blank_step(size, limits.max_draft_tokens + 1),
            slots=slots, positions=positions.astype(np.int32), token_counts=counts, draft_counts=drafts,
            samples=np.full(size, samples), wants_features=np.full(size, samples),
            tokens=self._random.integers(0, limits.vocabulary_size, counts.sum(), np.int32),
            draft_ids=draft_ids, draft_probs=draft_probs,
            uniforms=self._random.random((size, limits.max_draft_tokens + 1), np.float32),
        )

    def _drafter_step(self, sequences: int) -> DrafterStep:
        """A block for every sequence, after the appends of a round; a slot starts, and starts again, with a prompt."""
        positions = self._drafter_positions
        chosen = np.arange(sequences, dtype=np.int32)
        counts = np.full(sequences, APPENDED, np.int32)
        afresh = chosen[(positions[chosen] == 0) | (positions[chosen] + APPENDED > self.target.limits.max_context)]
        if afresh.size:
            start = self._slots.short_context
            positions[afresh] = start
            self.drafter.step(self._drafts(afresh, np.full(afresh.size, start, np.int32), drafts=False))
        positions[chosen] += APPENDED
        return self._drafts(chosen, counts, drafts=True)

    def _drafts(self, slots: Int32, counts: Int32, drafts: bool) -> DrafterStep:
        limits = self.drafter.limits
        return DrafterStep(
            slots=slots,
            anchors=self._random.integers(0, limits.vocabulary_size, slots.size, np.int32),
            positions=self._drafter_positions[slots], context_counts=counts,
            drafts=np.full(slots.size, drafts),
            context=self._random.standard_normal((counts.sum(), limits.feature_size), np.float32),
            temperatures=np.zeros(slots.size, np.float32),
            uniforms=self._random.random((slots.size, limits.block_size), np.float32),
            noise_keys=np.zeros((slots.size, limits.block_size), np.int32), coupled=np.zeros(slots.size, np.bool_),
        )
