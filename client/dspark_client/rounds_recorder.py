"""Rounds as they happen between the engines: what the drafter was sure of, and what the target accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from dspark import orchestrator as library
from dspark.engines.contract import (
    DrafterResult,
    DrafterStep,
    EngineFolder,
    Float32,
    Int32,
    TargetResult,
    TargetStep,
)
from dspark.engines.loading import load_drafter, load_target
from dspark.scheduling import make_policy
from dspark.settings import ServingSettings
from rich.console import Console

from dspark_client.direct import DirectEngines
from dspark_client.transport import Generation


@dataclass(frozen=True, eq=False)
class Round:
    """One drafted block: its confidence logits [gamma], and of its first `verified` drafts how many were accepted.

    What lies beyond `verified` is not known: the answer could not be longer, or a draft before ended it.
    """

    number: int                      # of the answer's rounds, from 0
    logits: Float32
    verified: int
    accepted: int


@dataclass(eq=False)
class RecordedAnswer:
    """One answer's rounds in order; the prompt [P] says whose they are."""

    prompt: list[int] = field(default_factory=list)
    complete: bool = False           # the prompt is read, so that what follows are verifications
    verifications: int = 0
    rounds: list[Round] = field(default_factory=list)


class RoundsRecorder:
    """Stands between a round loop and its engines, passes every step on, and keeps the rounds (one thread)."""

    def __init__(
        self, target: Callable[[TargetStep], TargetResult], drafter: Callable[[DrafterStep], DrafterResult],
        stop_tokens: Set[int],
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._stop_tokens = stop_tokens
        self._drafted: dict[int, Float32] = {}           # slot -> logits of the block that awaits its verification
        self._answers: list[RecordedAnswer] = []
        self._at: dict[int, RecordedAnswer] = {}         # slot -> whose it is

    def draft(self, step: DrafterStep) -> DrafterResult:
        """One step of the drafter."""
        result = self._drafter(step)
        for r in np.flatnonzero(step.drafts):
            self._drafted[int(step.slots[r])] = result.confidence_logits[r].copy()
        return result

    def verify(self, step: TargetStep) -> TargetResult:
        """One step of the target."""
        result = self._target(step)
        ends = step.token_counts.cumsum()
        for r, slot in enumerate(step.slots.tolist()):
            read = step.tokens[ends[r] - step.token_counts[r] : ends[r]]
            if not step.positions[r]:
                self._at[slot] = RecordedAnswer()
                self._answers.append(self._at[slot])
            answer = self._at[slot]
            if not answer.complete:
                answer.prompt.extend(read.tolist())
                answer.complete = bool(step.samples[r])
            elif step.draft_counts[r] and slot in self._drafted:
                self._keep(answer, self._drafted[slot], read[1:], int(result.accepted[r]))
        self._drafted.clear()                            # a block is verified in the step after it, or never
        return result

    def take(self) -> list[RecordedAnswer]:
        """The answers since the last time; none may be unfinished."""
        taken, self._answers = self._answers, []
        self._at.clear()
        return taken

    def _keep(self, answer: RecordedAnswer, logits: Float32, drafts: Int32, accepted: int) -> None:
        """A stop token among the drafts ends the block, accepted or not: what stands after it never counts.

        Either way, so that which drafts are judged depends on the drafts alone: else the labels would be biased.
        """
        ends = np.flatnonzero(np.isin(drafts, list(self._stop_tokens)))
        verified = len(drafts) if not ends.size else int(ends[0]) + 1
        answer.rounds.append(Round(answer.verifications, logits, verified, min(accepted, verified)))
        answer.verifications += 1


@dataclass(frozen=True)
class RecordedEngines:
    """Engines in this process that verify whole blocks, and who keeps their rounds."""

    engines: DirectEngines
    recorder: RoundsRecorder
    rules: library.RequestRules

    def prompt_tokens(self, generation: Generation) -> tuple[int, ...]:
        """The token ids that the prompt of a request comes to. Raises InvalidRequestError."""
        request = library.parse_request(library.RequestTensors(**generation.tensors()), self.rules)
        return tuple(request.prompt.tolist())


@contextmanager
def recorded_engines(settings: ServingSettings) -> Iterator[RecordedEngines]:
    """The engines of a folder under policy `full`, whatever calibration lies beside them, for the length of the block.

    Raises ConfigurationError for a folder without engines.
    """
    folder = EngineFolder(Path(settings.engine_folder))
    with ExitStack() as stack:
        with Console(stderr=True).status("loading the engines"):
            target = stack.enter_context(closing(load_target(folder.target, settings.threads)))
            drafter = stack.enter_context(closing(load_drafter(folder.drafter)))
        tokenizer = library.Tokenizer(folder.tokenizer)
        recorder = RoundsRecorder(target.step, drafter.step, tokenizer.stop_tokens)
        engines = library.Engines(recorder.verify, recorder.draft, target.limits, drafter.limits)
        policy = make_policy("full", engines.block_size)
        orchestrator = library.Orchestrator(engines, tokenizer, policy, settings)
        orchestrator.start()
        stack.callback(orchestrator.close)
        rules = library.RequestRules(tokenizer, target.limits, settings.default_max_tokens)
        yield RecordedEngines(DirectEngines(orchestrator, rules), recorder, rules)
