"""A throughput curve for people: a table, and a picture."""

from __future__ import annotations

from pathlib import Path

from dspark.errors import ConfigurationError
from dspark.scheduling.curve_record import CurveRecord, TargetPoint

from dspark_client.profile import ProfileReport


def table(report: ProfileReport) -> str:
    """Milliseconds of target steps by sequences and tokens of each, and of drafter steps."""
    shown = _shortest_context(report.curve)
    whole = [point for point in shown if point.tokens % point.sequences == 0]
    drafter = {point.sequences: point.median_s for point in report.curve.drafter}
    numbers = sorted({point.sequences for point in whole})
    times = {(point.sequences, point.tokens // point.sequences): point.median_s for point in whole}
    lengths = [
        length for length in sorted({length for _, length in times})
        if 2 * sum((number, length) in times for number in numbers) > len(numbers)
    ]
    lines = ["ms of a step, by sequences (rows) and tokens of each (columns), and of a draft"]
    lines.append("".join(f"{name:>8}" for name in ("", *lengths, "draft")))
    for number in numbers:
        cells = [times.get((number, length)) for length in lengths] + [drafter.get(number)]
        lines.append(f"{number:>8}" + "".join(f"{'' if cell is None else f'{1e3 * cell:.1f}':>8}" for cell in cells))
    lines.append(f"measured in {report.seconds:.0f} s; {report.file}")
    return "\n".join(lines)


def plot(record: CurveRecord, file: Path) -> None:
    """Draw the times of steps by their tokens, a line for every number of sequences. Raises ConfigurationError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    target, drafter = figure.subplots(1, 2, width_ratios=(2, 1))
    shown = _shortest_context(record)
    for sequences in sorted({point.sequences for point in shown}):
        line = [point for point in shown if point.sequences == sequences]
        label = f"{sequences} sequence{'s' if sequences > 1 else ''}"
        target.errorbar(
            [point.tokens for point in line], [1e3 * point.median_s for point in line],
            [0.5e3 * point.spread_s for point in line], marker=".", capsize=2, linewidth=1, label=label,
        )
    target.set(xlabel="tokens of the step", ylabel="ms", title="target step", ylim=(0, None))
    target.legend()
    drafter.errorbar(
        [point.sequences for point in record.drafter], [1e3 * point.median_s for point in record.drafter],
        [0.5e3 * point.spread_s for point in record.drafter], marker=".", capsize=2, linewidth=1,
    )
    drafter.set(xlabel="sequences", ylabel="ms", title="drafter step", ylim=(0, None))
    for axes in (target, drafter):
        axes.grid(alpha=0.3)
    figure.suptitle(record.machine, fontsize="small")
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error}") from error


def _shortest_context(record: CurveRecord) -> list[TargetPoint]:
    """Of every size the point with the shortest context, by sequences and tokens."""
    shortest: dict[tuple[int, int], TargetPoint] = {}
    for point in sorted(record.target, key=lambda point: (point.sequences, point.tokens, point.context)):
        shortest.setdefault((point.sequences, point.tokens), point)
    return list(shortest.values())
