"""One request's life in the round loop: waiting, prefill, decoding, finished."""

from __future__ import annotations

import enum
from collections import deque

import numpy as np

from dspark.drafting import LookupDraft, PromptLookup
from dspark.engines.contract import Float32
from dspark.orchestrator.output import Origin, Outlet, Sink
from dspark.orchestrator.randomness import RequestRandomness
from dspark.orchestrator.request import GenerationRequest
from dspark.orchestrator.statistics import SequenceStatistics
from dspark.scheduling import BlockRecord, LookupRecord


class Phase(enum.Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODING = "decoding"
    FINISHED = "finished"


class PendingContext:
    """Feature rows of committed tokens that the drafter has not read yet; only the last `window` are kept."""

    def __init__(self, window: int, feature_size: int) -> None:
        self._window = window
        self._pieces: deque[Float32] = deque([np.empty((0, feature_size), np.float32)])
        self._waiting = 0            # rows of all pieces

    def append(self, rows: Float32) -> None:
        """Add the rows [n, feature_size] of the tokens committed next."""
        self._pieces.append(rows)
        self._waiting += len(rows)
        while self._waiting - len(self._pieces[0]) >= self._window:      # joined only when they are taken
            self._waiting -= len(self._pieces.popleft())

    def take(self) -> Float32:
        """The last `window` of the rows that wait, which wait no longer."""
        rows: Float32 = np.concatenate(self._pieces)[-self._window :]
        self._pieces = deque([rows[:0]])
        self._waiting = 0
        return rows


class Sequence:
    """A request with its state. The anchor is the newest output token: the target has not read it yet."""

    def __init__(
        self, request: GenerationRequest, sink: Sink, outlet: Outlet, statistics: SequenceStatistics,
        context: PendingContext, block_size: int,
    ) -> None:
        self.request = request
        self.sink = sink
        self.outlet = outlet
        self.statistics = statistics
        self.context = context
        self.randomness = RequestRandomness(request.seed)
        self.phase = Phase.WAITING
        self.slot = -1
        self.kv_blocks = 0           # reserved for as long as the slot is held
        self.committed = 0           # tokens the target has read and keeps: the anchor's position while decoding
        self.anchor = -1
        self.output_tokens = 0
        self.blocks = BlockRecord()
        self.lookups = LookupRecord()
        self._lookup: PromptLookup | None = None
        self._block_size = block_size
        self.most_drafts = block_size if request.max_draft_tokens is None else min(block_size, request.max_draft_tokens)

    @property
    def draft_limit(self) -> int:
        """Draft tokens that the next verification may hold; it adds one token of the target's own."""
        return min(self.most_drafts, self.request.max_tokens - self.output_tokens - 1)

    @property
    def draft_floor(self) -> int:
        """Draft tokens that the next verification holds at least, where there is a draft."""
        return max(0, min(self.request.min_draft_tokens, self.draft_limit))

    @property
    def greedy(self) -> bool:
        return self.request.sampling.greedy

    def lookup_draft(self) -> LookupDraft:
        """What followed the newest tokens when they occurred before, in prompt or output."""
        if self._lookup is None:     # the first output token follows the prompt and is the anchor
            self._lookup = PromptLookup()
            self._lookup.extend([*self.request.prompt.tolist(), self.anchor])
        return self._lookup.draft(self._block_size)

    def remember(self, tokens: list[int]) -> None:
        """More output tokens, for later lookups."""
        if self._lookup is not None:
            self._lookup.extend(tokens)

    def needs_features(self, up_to: int, window: int) -> bool:
        """Whether a later draft attends to tokens that a step reads up to position `up_to`, not included."""
        room_after = self.request.max_tokens - self.output_tokens - 2       # this step adds a token, the next one too
        return min(self.most_drafts, room_after) > 0 and up_to > len(self.request.prompt) - window

    def commit(self, count: int, features: Float32) -> None:
        """`count` more tokens are committed, with their feature rows, or none where they were not asked for."""
        self.committed += count
        if len(features):
            self.context.append(features)
        if self.phase is Phase.PREFILL and self.committed >= len(self.request.prompt):
            self.phase = Phase.DECODING

    def origins(self, verified: int, accepted: int) -> list[Origin]:
        """Where the tokens of one step come from: its accepted drafts, then the target's own."""
        if not self.output_tokens:
            return [Origin.FIRST]
        return [Origin.ACCEPTED] * accepted + [Origin.CORRECTION if accepted < verified else Origin.BONUS]

    def report(self) -> str:
        """The statistics that go out with the last chunk."""
        return self.statistics.report(self.request.seed, len(self.request.prompt), self.output_tokens)
