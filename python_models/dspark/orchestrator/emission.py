"""From what a target step decided to what a client sees."""

from __future__ import annotations

import time

from dspark.engines.contract import TargetResult
from dspark.orchestrator.output import FinishReason
from dspark.orchestrator.statistics import RoundReport
from dspark.orchestrator.steps import Source, Turn


def commit(turn: Turn, r: int, result: TargetResult) -> None:
    """Row r of a step is the turn's: its accepted tokens, and those it read before them, are committed for good."""
    start = int(result.feature_counts[:r].sum())
    count = len(turn.tokens) - turn.draft_count + accepted_drafts(turn, r, result)
    turn.sequence.commit(count, result.features[start : start + min(count, int(result.feature_counts[r]))])


def accepted_drafts(turn: Turn, r: int, result: TargetResult) -> int:
    """Drafts of row r that are committed: those accepted, as far as the window goes."""
    return min(turn.window, int(result.accepted[r]))


def output_tokens(turn: Turn, r: int, result: TargetResult) -> list[int]:
    """The committed drafts of row r and the token after them.

    Beyond a window that cuts accepted drafts short, that token is the next of them: accepted or replaced, the token at
    any one position has the target's law (dspark-spec, section 6).
    """
    accepted = accepted_drafts(turn, r, result)
    cut = accepted < int(result.accepted[r])
    return [*turn.drafts[:accepted].tolist(), int(turn.drafts[accepted] if cut else result.next_tokens[r])]


def emit_tokens(
    turn: Turn, r: int, result: TargetResult, tokens: list[int], report: RoundReport,
) -> FinishReason | None:
    """Send the output `tokens` of row r, up to where the sequence ends; why it ends, if it does."""
    sequence, accepted = turn.sequence, accepted_drafts(turn, r, result)
    origins = sequence.origins(turn.window, accepted)
    log_probs = result.log_probs[r, : len(tokens)].tolist()
    reason: FinishReason | None = None
    emitted = 0
    for token, origin, log_prob in zip(tokens, origins, log_probs, strict=True):
        reason = sequence.outlet.push(token, origin, log_prob)
        emitted += 1
        if reason is not None:
            break
    _count(turn, accepted, int(result.accepted[r]), emitted, report)
    sequence.anchor = tokens[-1]
    sequence.output_tokens += emitted
    if reason is not None:
        sequence.sink.finish(sequence.outlet.take(reason, sequence.report()))
    elif sequence.request.stream:
        sequence.sink.send(sequence.outlet.take())
    return reason


def _count(turn: Turn, accepted: int, acceptable: int, emitted: int, report: RoundReport) -> None:
    statistics, now = turn.sequence.statistics, time.perf_counter()
    if turn.reads_prompt:
        statistics.first_token = now
        report.first_token_seconds.append(now - statistics.submitted)
    else:
        statistics.count_round(turn.window, accepted, turn.source is Source.LOOKUP)
        statistics.acceptable += acceptable
        report.token_gap_seconds.append((now - statistics.last_token) / emitted)
    statistics.last_token = now
    report.count_verification(turn.survival, accepted, acceptable)
    if turn.source is Source.LOOKUP:
        report.lookup_verified += turn.draft_count
        report.lookup_accepted += accepted
    report.output_tokens += emitted
