"""Whether a measured curve can be believed, and says anything."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.errors import ConfigurationError
from dspark.scheduling.curve_record import MEASURE, CurveRecord, DrafterPoint, TargetPoint

MEANINGFUL_RISE = 1.1                # largest step over smallest; below it every draft is free
TOLERANCE = 0.15                     # of a step's time, beyond the spreads: machines drift while they are measured
UNSTABLE_TOLERANCE = 0.5             # where a curve says of itself that its times are not settled


def check_fits(record: CurveRecord, engine: str, machine: str) -> None:
    """Raise ConfigurationError for a curve of another engine or machine (fingerprints, see curve_record)."""
    if record.engine != engine:
        raise ConfigurationError(
            f"the throughput curve is of another build of the engine ({record.engine[:12]}, not {engine[:12]}); "
            f"{MEASURE} again"
        )
    if record.machine != machine:
        raise ConfigurationError(
            f"the throughput curve was measured on {record.machine!r}, this is {machine!r}; {MEASURE} here"
        )


def check_shape(record: CurveRecord) -> None:
    """Raise ConfigurationError for a curve that is flat, or on which more work takes clearly less time."""
    sizes: dict[int, set[int]] = {}
    for point in record.target:
        sizes.setdefault(point.sequences, set()).add(point.tokens)
    if lone := [sequences for sequences, tokens in sizes.items() if len(tokens) < 2]:
        raise ConfigurationError(
            f"the throughput curve has one size of step for {lone[0]} sequences, so what drafts add is not known: at "
            f"least two are needed; {MEASURE} again"
        )
    smallest = min(record.target, key=lambda point: point.tokens)
    largest = max(record.target, key=lambda point: point.tokens)
    if largest.median_s < MEANINGFUL_RISE * smallest.median_s:
        raise ConfigurationError(
            f"the throughput curve is flat: {_step(largest)} took {_ms(largest)}, {_step(smallest)} {_ms(smallest)}; a "
            f"scheduler could only verify everything, for which --policy full needs no curve; {MEASURE} again"
        )
    tolerance = TOLERANCE if record.stable else UNSTABLE_TOLERANCE
    _check_order([(point, (point.tokens, point.sequences, point.context)) for point in record.target], tolerance)
    _check_order([(point, (point.sequences,)) for point in record.drafter], tolerance)


def _check_order(points: Sequence[tuple[TargetPoint | DrafterPoint, tuple[float, ...]]], tolerance: float) -> None:
    """Compare every point with those whose first size is larger and whose others are not smaller."""
    for point, size in points:
        for larger, larger_size in points:
            if larger_size[0] <= size[0] or any(a > b for a, b in zip(size, larger_size, strict=True)):
                continue
            noise = point.spread_s + larger.spread_s + tolerance * point.median_s
            if point.median_s - larger.median_s > noise:
                raise ConfigurationError(
                    f"the throughput curve contradicts itself: {_step(larger)} took {_ms(larger)}, less than the "
                    f"{_ms(point)} of {_step(point)}; {MEASURE} again while the machine does nothing else"
                )


def _step(point: TargetPoint | DrafterPoint) -> str:
    if isinstance(point, DrafterPoint):
        return f"a draft for {point.sequences} sequences"
    return f"a step of {point.tokens} tokens ({point.sequences} sequences, context {point.context:g})"


def _ms(point: TargetPoint | DrafterPoint) -> str:
    return f"{1e3 * point.median_s:.3g} ms"
