"""The round loop: admit, draft, schedule, verify, emit, for all sequences together (dspark-spec, section 1)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import (
    DrafterLimits,
    DrafterResult,
    DrafterStep,
    TargetLimits,
    TargetResult,
    TargetStep,
)
from dspark.errors import CancelledRequestError, DSparkError, EngineError
from dspark.orchestrator import sequence as life
from dspark.orchestrator import steps
from dspark.orchestrator.admission import Admission
from dspark.orchestrator.emission import commit, emit_tokens, output_tokens
from dspark.orchestrator.proposals import (
    NO_LOOKUP,
    Proposals,
    block_confidence,
    draft_lengths,
    learn,
    scheduling_batch,
    whole_drafts,
)
from dspark.orchestrator.sequence import Phase
from dspark.orchestrator.statistics import RoundReport
from dspark.orchestrator.steps import Draft, Turn
from dspark.scheduling import AcceptanceMemory, Calibration, ObservingCosts, Policy

log = logging.getLogger("dspark")


@dataclass(frozen=True)
class Engines:
    """The two engines as callables, and what they can hold: a BLS call inside Triton, an engine's `step` elsewhere."""

    target: Callable[[TargetStep], TargetResult]
    drafter: Callable[[DrafterStep], DrafterResult]
    target_limits: TargetLimits
    drafter_limits: DrafterLimits

    @property
    def block_size(self) -> int:
        """Draft tokens of one block that both engines can take."""
        return min(self.target_limits.max_draft_tokens, self.drafter_limits.block_size)


class RoundLoop:
    """Runs the sequences that `admission` hands out, a round at a time. One caller, one thread.

    What fails, fails where it belongs: an engine's failure ends the sequences of that step, a sequence's own failure
    ends that one; the loop goes on.
    """

    def __init__(
        self, engines: Engines, policy: Policy, admission: Admission, prefill_chunk: int,
        calibration: Calibration | None = None, costs: ObservingCosts | None = None, diagnoses: bool = False,
        coupled: bool = False,
    ) -> None:
        self._engines = engines
        self._admission = admission
        self._prefill_chunk = prefill_chunk
        self._temperatures = None if calibration is None else calibration.temperatures
        self._costs = costs
        self._diagnoses = diagnoses  # verify whole drafts, commit what the policy would have had verified
        self._coupled = coupled      # verification by the noise that drafts are drawn by
        self._memory = AcceptanceMemory(engines.block_size)
        self._released: set[int] = set()      # slots that the target has not been told of yet
        self._report = RoundReport(engines.block_size)
        self.policy = policy
        self.active: list[life.Sequence] = []

    def round(self) -> RoundReport:
        """One round of every active sequence."""
        self._report = RoundReport(self._engines.block_size)
        started = time.perf_counter()
        self.admit()
        proposals = self.draft()
        turns = self.schedule(proposals)
        result = self.verify(turns)
        self.emit(turns, result, proposals)
        return self._complete_report(turns, time.perf_counter() - started)

    def admit(self) -> None:
        """Let go of those whom nobody waits for any more, and take in as many waiting sequences as fit."""
        gone = CancelledRequestError("the client went away")
        for sequence in self._admission.withdraw(lambda waiting: waiting.sink.is_cancelled()):
            self._tell(sequence, gone)
        self._fail([sequence for sequence in self.active if sequence.sink.is_cancelled()], gone)
        for sequence in self._admission.admit():
            sequence.statistics.admitted = time.perf_counter()
            self.active.append(sequence)

    def draft(self) -> Proposals | None:
        """A draft for every decoding sequence that the policy wants one for, from the source it chose."""
        decoding = [sequence for sequence in self.active if sequence.phase is Phase.DECODING]
        if not decoding:
            return None
        lookups = {sequence: sequence.lookup_draft() for sequence in decoding if self.policy.uses_lookup}
        batch = scheduling_batch(decoding, lookups, self._memory, self._prefills())
        plan = self.policy.plan(batch)
        drafts = self._draft_blocks([decoding[r] for r in np.flatnonzero(plan.drafter)])
        for r in np.flatnonzero(plan.lookup):
            found = lookups[decoding[r]].tokens
            drafts[decoding[r]] = Draft.of_lookup(found, self._engines.drafter_limits.candidates, batch.lookup[r])
        return Proposals(decoding, batch, plan, lookups, drafts)

    def schedule(self, proposals: Proposals | None) -> list[Turn]:
        """What every sequence reads in this round's target step: drafts by the policy, prompts by arrival."""
        return [*self._verifications(proposals), *self._prefills()]

    def verify(self, turns: Sequence[Turn]) -> TargetResult | None:
        """The target's one step; None when there is nothing to do, or when it failed and its sequences with it."""
        if not turns:
            return None
        gamma = self._engines.target_limits.max_draft_tokens
        step = steps.target_step(turns, sorted(self._released), gamma, self._coupled)
        started = time.perf_counter()
        try:
            result = self._engines.target(step)
        except Exception as error:
            self._fail([turn.sequence for turn in turns], _engine_error("target", error))
            return None
        finally:
            self._report.verify_seconds = time.perf_counter() - started
        self._released.clear()
        if self._costs is not None:
            context = float(step.positions.mean())
            self._costs.observe_target(len(turns), len(step.tokens), context, self._report.verify_seconds)
        return result

    def emit(self, turns: Sequence[Turn], result: TargetResult | None, proposals: Proposals | None) -> None:
        """Commit what was accepted and pass it on: text, reasons to end, statistics, what was learnt."""
        if result is None:
            return
        for r, turn in enumerate(turns):
            try:
                commit(turn, r, result)
                if not turn.samples:
                    continue
                tokens = output_tokens(turn, r, result)
                if proposals is not None and not turn.reads_prompt:
                    found = proposals.lookups.get(turn.sequence, NO_LOOKUP)
                    learn(turn, found, tokens, int(result.accepted[r]), self._memory)
                    turn.sequence.remember(tokens)
                if emit_tokens(turn, r, result, tokens, self._report) is not None:
                    self._end(turn.sequence)
            except Exception as error:            # whatever it is, it is this sequence's own and costs no other
                log.exception("a request failed")
                self._fail([turn.sequence], EngineError(f"this request failed: {error!r}"))

    def fail_all(self, error: DSparkError) -> None:
        """End every sequence, waiting or active, with `error`."""
        for sequence in self._admission.withdraw(lambda _: True):
            self._tell(sequence, error)
        self._fail(list(self.active), error)

    def _draft_blocks(self, drafting: list[life.Sequence]) -> dict[life.Sequence, Draft]:
        """One drafter step; none of its sequences are left when it fails."""
        if not drafting:
            return {}
        started = time.perf_counter()
        try:
            step = steps.drafter_step(drafting, self._engines.drafter_limits, self._coupled)
            result = self._engines.drafter(step)
        except Exception as error:
            self._fail(drafting, _engine_error("drafter", error))
            return {}
        finally:
            self._report.draft_seconds = time.perf_counter() - started
        if self._costs is not None:
            self._costs.observe_drafter(len(drafting), self._report.draft_seconds)
        for sequence in drafting:
            sequence.statistics.drafted += self._engines.block_size
            self._report.drafted += self._engines.block_size
        confidence, survivals = block_confidence(
            drafting, result.confidence_logits, self._temperatures, self._memory, self.policy.learns
        )
        return {
            sequence: Draft.of_block(result, r, survivals[r], confidence[r]) for r, sequence in enumerate(drafting)
        }

    def _verifications(self, proposals: Proposals | None) -> list[Turn]:
        decoding = [sequence for sequence in self.active if sequence.phase is Phase.DECODING]
        if proposals is None or not decoding:
            return []
        windows = draft_lengths(decoding, proposals, self._engines.block_size)
        lengths = whole_drafts(decoding, proposals) if self._diagnoses else windows
        return [
            steps.verification(
                sequence, proposals.drafts.get(sequence), int(length), int(window),
                self._engines.drafter_limits.candidates, self._needs_features(sequence, sequence.committed + 1),
            )
            for sequence, length, window in zip(decoding, lengths, windows, strict=True)
        ]

    def _prefills(self) -> list[Turn]:
        turns, room = [], self._prefill_chunk
        for sequence in self.active:
            if sequence.phase is Phase.PREFILL and room > 0:
                count = min(room, len(sequence.request.prompt) - sequence.committed)
                needs_features = self._needs_features(sequence, sequence.committed + count)
                turns.append(steps.prefill(sequence, count, self._engines.drafter_limits.candidates, needs_features))
                room -= count
        return turns

    def _needs_features(self, sequence: life.Sequence, up_to: int) -> bool:
        # A policy may draft, or not, for all its life: features that were not asked for cannot be had later.
        return self.policy.uses_drafter and sequence.needs_features(up_to, self._engines.drafter_limits.window)

    def _fail(self, sequences: Sequence[life.Sequence], error: DSparkError) -> None:
        for sequence in sequences:
            self._end(sequence)
            self._tell(sequence, error)

    def _end(self, sequence: life.Sequence) -> None:
        sequence.phase = Phase.FINISHED
        self.active.remove(sequence)
        self._released.add(sequence.slot)
        self._admission.release(sequence)

    @staticmethod
    def _tell(sequence: life.Sequence, error: DSparkError) -> None:
        sequence.phase = Phase.FINISHED
        try:
            sequence.sink.fail(error)
        except Exception:                         # a client that cannot be told is no reason to stop for the others
            log.exception("a client could not be told that its request failed")

    def _complete_report(self, turns: Sequence[Turn], seconds: float) -> RoundReport:
        report = self._report
        report.sequences = len(turns)
        report.prefill_tokens = sum(len(turn.tokens) for turn in turns if turn.reads_prompt)
        report.active = len(self.active)
        report.waiting = self._admission.waiting
        report.kv_blocks_used = self._admission.kv_blocks_used
        report.parted = self._memory.parted_positions()
        report.host_seconds = seconds - report.draft_seconds - report.verify_seconds
        return report


def _engine_error(name: str, error: Exception) -> DSparkError:
    """Whatever an engine raised, as the error that its requests end with."""
    if isinstance(error, EngineError):
        return error
    log.error("%s step failed", name, exc_info=error)
    return EngineError(f"the {name} failed: {error!r}")
