"""One request's life in the round loop: waiting, prefill, decoding, finished."""

from __future__ import annotations

import enum

import numpy as np

from dspark.engines.contract import Float32
from dspark.orchestrator.output import Origin, Outlet, Sink
from dspark.orchestrator.randomness import RequestRandomness
from dspark.orchestrator.request import GenerationRequest
from dspark.orchestrator.statistics import SequenceStatistics


class Phase(enum.Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODING = "decoding"
    FINISHED = "finished"


class PendingContext:
    """Feature rows of committed tokens that the drafter has not read yet; only the last `window` are kept."""

    def __init__(self, window: int, feature_size: int) -> None:
        self._window = window
        self._rows = np.empty((0, feature_size), np.float32)

    def append(self, rows: Float32) -> None:
        """Add the rows [n, feature_size] of the tokens committed next."""
        self._rows = np.concatenate([self._rows, rows])[-self._window :]

    def take(self) -> Float32:
        """All rows that wait, which wait no longer."""
        rows = self._rows
        self._rows = rows[:0]
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
        self.most_drafts = block_size if request.max_draft_tokens is None else min(block_size, request.max_draft_tokens)

    @property
    def draft_limit(self) -> int:
        """Draft tokens that the next verification may hold; it adds one token of the target's own."""
        return min(self.most_drafts, self.request.max_tokens - self.output_tokens - 1)

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
