"""What a client gets: one sequence's tokens on their way from the target to its sink."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from dspark.errors import DSparkError
from dspark.orchestrator.request import GenerationRequest
from dspark.orchestrator.text import IncrementalDetokenizer, StopChecker


class Origin(enum.IntEnum):
    """Where an output token comes from (dspark-spec, section 6)."""

    FIRST = 0                        # the target's, after the prompt
    ACCEPTED = 1                     # a draft that was accepted
    CORRECTION = 2                   # the target's, in place of a rejected draft
    BONUS = 3                        # the target's, after drafts that were all accepted, or after none


class FinishReason(enum.Enum):
    STOP = "stop"                    # a stop token or a stop string
    LENGTH = "length"                # max_tokens


@dataclass(frozen=True)
class Chunk:
    """What is new since the last chunk; the last one alone has a finish reason and statistics (JSON)."""

    text: str                        # the token_texts, one after the other
    token_ids: tuple[int, ...]       # [n]
    token_texts: tuple[str, ...]     # [n] the text that each token released
    token_origins: tuple[Origin, ...]  # [n]
    log_probs: tuple[float, ...]     # [n], or empty where they are not asked for
    finish_reason: FinishReason | None = None
    statistics: str = ""


class Sink(Protocol):
    """Where a request's output goes. Called from the loop's thread alone; `finish` or `fail` comes once, and last."""

    def send(self, chunk: Chunk) -> None: ...

    def finish(self, chunk: Chunk) -> None: ...

    def fail(self, error: DSparkError) -> None: ...

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the output any more. Asked every round, so it must cost nothing."""
        ...


class Outlet:
    """Gathers a sequence's tokens, their text and the reason to end."""

    def __init__(self, request: GenerationRequest, detokenizer: IncrementalDetokenizer) -> None:
        self._request = request
        self._detokenizer = detokenizer
        self._stops = StopChecker(request.stop_strings)
        self._echo = request.echo
        self._emitted = 0
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._origins: list[Origin] = []
        self._log_probs: list[float] = []

    def push(self, token: int, origin: Origin, log_prob: float) -> FinishReason | None:
        """Take one more token; a finish reason means that nothing may follow it."""
        text, reason = self._release(token)
        self._emitted += 1
        if reason is None and self._emitted >= self._request.max_tokens:
            text, reason = text + self._stops.flush(), FinishReason.LENGTH
        self._token_ids.append(token)
        self._texts.append(text)
        self._origins.append(origin)
        if self._request.return_log_probs:
            self._log_probs.append(log_prob)
        return reason

    def take(self, finish_reason: FinishReason | None = None, statistics: str = "") -> Chunk:
        """What has gathered since the last call."""
        chunk = Chunk(
            text=self._echo + "".join(self._texts),
            token_ids=tuple(self._token_ids),
            token_texts=tuple(self._texts),
            token_origins=tuple(self._origins),
            log_probs=tuple(self._log_probs),
            finish_reason=finish_reason,
            statistics=statistics,
        )
        self._echo = ""
        for gathered in (self._token_ids, self._texts, self._origins, self._log_probs):
            gathered.clear()
        return chunk

    def _release(self, token: int) -> tuple[str, FinishReason | None]:
        if token in self._request.stop_tokens:
            return self._stops.flush(), FinishReason.STOP
        release = self._stops.push(self._detokenizer.push(token))
        return release.text, FinishReason.STOP if release.stopped else None
