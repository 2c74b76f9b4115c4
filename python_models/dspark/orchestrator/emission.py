"""From what a target step decided to what a client sees."""

from __future__ import annotations

import time

from dspark.engines.contract import TargetResult
from dspark.orchestrator.output import FinishReason
from dspark.orchestrator.statistics import RoundReport
from dspark.orchestrator.steps import Turn


def commit(turn: Turn, r: int, result: TargetResult) -> None:
    """Row r of a step is the turn's: its accepted tokens, and those it read before them, are committed for good."""
    end = int(result.feature_counts[: r + 1].sum())
    features = result.features[end - int(result.feature_counts[r]) : end]
    turn.sequence.commit(len(turn.tokens) - turn.draft_count + int(result.accepted[r]), features)


def output_tokens(turn: Turn, r: int, result: TargetResult) -> list[int]:
    """The accepted drafts of row r and the token after them."""
    return [*turn.drafts[: int(result.accepted[r])].tolist(), int(result.next_tokens[r])]


def emit_tokens(
    turn: Turn, r: int, result: TargetResult, tokens: list[int], report: RoundReport,
) -> FinishReason | None:
    """Send the output `tokens` of row r, up to where the sequence ends; why it ends, if it does."""
    sequence, accepted = turn.sequence, int(result.accepted[r])
    origins = sequence.origins(turn.draft_count, accepted)
    log_probs = result.log_probs[r, : len(tokens)].tolist()
    reason: FinishReason | None = None
    emitted = 0
    for token, origin, log_prob in zip(tokens, origins, log_probs, strict=True):
        reason = sequence.outlet.push(token, origin, log_prob)
        emitted += 1
        if reason is not None:
            break
    _count(turn, accepted, emitted, report)
    sequence.anchor = tokens[-1]
    sequence.output_tokens += emitted
    if reason is not None:
        sequence.sink.finish(sequence.outlet.take(reason, sequence.report()))
    elif sequence.request.stream:
        sequence.sink.send(sequence.outlet.take())
    return reason


def _count(turn: Turn, accepted: int, emitted: int, report: RoundReport) -> None:
    statistics, now = turn.sequence.statistics, time.perf_counter()
    if turn.reads_prompt:
        statistics.first_token = now
        report.first_token_seconds.append(now - statistics.submitted)
    else:
        statistics.count_round(turn.draft_count, accepted)
        report.token_gap_seconds.append((now - statistics.last_token) / emitted)
    statistics.last_token = now
    report.count_verification(turn.survival, accepted)
    report.output_tokens += emitted
