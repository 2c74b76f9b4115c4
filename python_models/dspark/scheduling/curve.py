"""The measured throughput curve: seconds of a step by sequences, tokens and context (dspark-spec, section 5).

The time of a target step is taken as T(R, B, c) = theta_R(B) + c (a R + b B): a measured line over tokens for every
number of sequences, plus what reading c tokens of context costs, which is linear. Points are joined by straight lines,
so a staircase is as sharp as it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling.confidence import Float64, Int64
from dspark.scheduling.curve_checks import check_fits, check_shape
from dspark.scheduling.curve_context import ContextCost
from dspark.scheduling.curve_record import CURVE_FILE, CurveRecord, engine_fingerprint, machine_fingerprint

LEAST_OF_TIME = 0.1                  # of a step's time that context cannot account for


@dataclass(frozen=True, eq=False)
class ThroughputCurve:
    """Costs of steps as measured (StepCosts); beyond what was measured the lines go on."""

    stable: bool
    context_cost: ContextCost
    without_context: Float64         # [S, B + 1] seconds by sequences - 1 and tokens; rows do not fall
    per_token_beyond: Float64        # [S] seconds of every token beyond B
    drafter: Float64                 # [S] seconds by sequences - 1; does not fall
    per_sequence_beyond: float       # of the drafter

    @staticmethod
    def read(folder: EngineFolder, gamma: int, threads: int = 0) -> ThroughputCurve:
        """The curve in the folder's root, for a target that runs with so many threads (0: all cores).

        Raises ConfigurationError when curve.json is missing, cannot be understood, holds an impossible value, is flat,
        contradicts itself, or is of another engine or machine.
        """
        record = CurveRecord.read(folder)
        try:
            check_fits(record, engine_fingerprint(folder), machine_fingerprint(threads))
            return ThroughputCurve.of(record, gamma)
        except ConfigurationError as error:
            raise ConfigurationError(f"{folder.root / CURVE_FILE}: {error}") from error

    @staticmethod
    def of(record: CurveRecord, gamma: int) -> ThroughputCurve:
        """The curve through a record's points. Raises ConfigurationError for one that is flat or contradicts itself."""
        check_shape(record)
        context_cost = ContextCost.fit(record.target)
        lines = _lines(record, context_cost)
        most = max(max(lines), max(point.sequences for point in record.drafter))
        reach = max(most * (gamma + 1), max(int(tokens[-1]) for tokens, _ in lines.values()))
        known = sorted(lines)
        rows = _rows(lines, reach)
        everyone = np.arange(1, most + 1)
        measured = np.stack([rows[sequences] for sequences in known])
        table = _rising(np.stack([np.interp(everyone, known, column) for column in measured.T], axis=1))
        drafter = {point.sequences: point.median_s for point in record.drafter}
        sizes = np.array(sorted(drafter))
        times = _rising(np.array([drafter[size] for size in sizes]))
        beyond = _octave_slope(sizes, times)
        return ThroughputCurve(
            record.stable,
            context_cost,
            table,
            np.array([_octave_slope(np.arange(row.size), row) for row in table]),
            np.interp(everyone, sizes, times) + beyond * np.maximum(everyone - sizes[-1], 0),
            beyond,
        )

    def target_seconds(self, sequences: int, tokens: Int64, context: float) -> Float64:
        """Seconds [N] of target steps of tokens [N] (StepCosts).

        Beyond the most sequences that were measured, only the tokens count.
        """
        index = min(max(sequences, 1), len(self.without_context)) - 1
        row = self.without_context[index]
        inside = np.minimum(tokens, row.size - 1)
        cost = self.context_cost
        result: Float64 = (
            row[inside]
            + self.per_token_beyond[index] * (tokens - inside)
            + context * (cost.per_sequence * sequences + cost.per_token * tokens)
        )
        return result

    def drafter_seconds(self, sequences: int) -> float:
        """Seconds of a drafter step (StepCosts)."""
        index = min(max(sequences, 1), len(self.drafter)) - 1
        return float(self.drafter[index] + self.per_sequence_beyond * max(0, sequences - len(self.drafter)))


def _lines(record: CurveRecord, context_cost: ContextCost) -> dict[int, tuple[Int64, Float64]]:
    """For every number of sequences its tokens, ascending, and their seconds without context; never falling."""
    found: dict[int, dict[int, list[float]]] = {}
    for point in record.target:
        seconds = max(point.median_s - context_cost.of(point), LEAST_OF_TIME * point.median_s)
        found.setdefault(point.sequences, {}).setdefault(point.tokens, []).append(seconds)
    return {
        sequences: (
            np.array(sorted(times)), _rising(np.array([np.mean(times[tokens]) for tokens in sorted(times)]))
        )
        for sequences, times in found.items()
    }


def _rows(lines: Mapping[int, tuple[Int64, Float64]], reach: int) -> dict[int, Float64]:
    """Seconds [reach + 1] by tokens for every measured number of sequences.

    Where a line ends, that of the nearest number which goes further says how time rises, T = alpha(R) + theta(B); and
    where it begins, the line of the fewest sequences. The furthest line goes on straight.
    """
    every = np.arange(reach + 1)
    rows: dict[int, Float64] = {}
    for sequences in sorted(lines, key=lambda known: (-lines[known][0][-1], known)):
        tokens, seconds = lines[sequences]
        row = np.interp(every, tokens, seconds)
        first, last = int(tokens[0]), int(tokens[-1])
        further = [known for known in rows if lines[known][0][-1] > last]
        if further:
            model = rows[min(further, key=lambda known: abs(np.log2(known / sequences)))]
            row[last:] += model[last:] - model[last]
        else:
            row[last:] += _octave_slope(tokens, seconds) * (every[last:] - last)
        rows[sequences] = row
    fewest = rows[min(rows)]
    for sequences, row in rows.items():
        first = int(lines[sequences][0][0])
        row[:first] = np.maximum(row[:first] + fewest[:first] - fewest[first], LEAST_OF_TIME * row[:first])
    return rows


def _rising(values: Float64) -> Float64:
    """The mean of the smallest rising curve above and the largest below, along the last axis."""
    above = np.maximum.accumulate(values, axis=-1)
    below = np.minimum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    result: Float64 = 0.5 * (above + below)
    return result


def _octave_slope(sizes: Int64, seconds: Float64) -> float:
    """How time rises at the end: over the last doubling of size, so that neither noise nor one ledge decides."""
    if sizes.size < 2:
        return 0.0
    half = min(int(np.searchsorted(sizes, sizes[-1] / 2, side="right")) - 1, sizes.size - 2)
    half = max(half, 0)
    return float((seconds[-1] - seconds[half]) / (sizes[-1] - sizes[half]))
