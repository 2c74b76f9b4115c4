"""Throughput curves of an engine whose times follow a formula."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.scheduling.curve_record import (
    CurveRecord,
    DrafterPoint,
    TargetPoint,
    engine_fingerprint,
    machine_fingerprint,
)

GAMMA, EDGE = 7, 128
SEQUENCES = (1, 2, 4, 8, 16, 32)


def stairs(sequences: int, tokens: int, context: float) -> float:
    """T(R, B, c) in seconds: fixed part, sequences, tokens, a ledge every 128 tokens, and context."""
    runs = -(-tokens // EDGE)
    return 0.004 + 2e-4 * sequences + 1e-3 * tokens + 0.02 * runs + context * (3e-7 * sequences + 1e-7 * tokens)


def drafting(sequences: int) -> float:
    return 0.005 + 1e-3 * sequences


def sizes(sequences: int) -> list[int]:
    blocks = {sequences * k for k in (1, 2, 3, 4, 6, 8)}
    further = {1: {16, 32, 64, 128, 129, 256}, 8: {128, 129, 256}, 32: {128, 129}}
    return sorted(blocks | further.get(sequences, set()))


def record_of(
    seconds: Callable[[int, int, float], float] = stairs,
    contexts: tuple[float, ...] = (64.0, 512.0),
    spread: float = 0.0,
) -> CurveRecord:
    """What a profile would measure; every size at all contexts."""
    return CurveRecord(
        engine="engine", machine="machine", created="2026-01-01T00:00:00+00:00", stable=True,
        target=tuple(
            TargetPoint(sequences, tokens / sequences, context, 7, seconds(sequences, tokens, context), spread)
            for sequences in SEQUENCES for tokens in sizes(sequences) for context in contexts
        ),
        drafter=tuple(DrafterPoint(sequences, 7, drafting(sequences), spread) for sequences in SEQUENCES),
    )


def engine_folder(root: Path) -> EngineFolder:
    """A folder in which only the two engine.json lie."""
    folder = EngineFolder(root)
    for part in (folder.target, folder.drafter):
        part.mkdir(parents=True)
        (part / "engine.json").write_text(json.dumps({"engine": part.name}), "utf-8")
    return folder


def write_here(folder: EngineFolder, record: CurveRecord, threads: int = 0) -> None:
    """Write the record as of this folder's engine and this machine."""
    replace(record, engine=engine_fingerprint(folder), machine=machine_fingerprint(threads)).write(folder)
