"""What training makes of prompts: an even mixture without duplicates, and a split by prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from dspark.prompts import Prompt

HASH_RANGE = 1 << 64


def hash_of(text: str) -> int:
    """A number in [0, 2^64) that depends on `text` alone, not on the run or the machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def is_held_out(prompt_id: str, fraction: float) -> bool:
    """Whether every response to this prompt is kept for validation: the split is by prompt, and the same everywhere."""
    return hash_of("held-out/" + prompt_id) < fraction * HASH_RANGE


def interleave(groups: Sequence[Iterable[Prompt]]) -> list[Prompt]:
    """One prompt of each group in turn, so that a stop at any time leaves an even mixture."""
    waiting = [iter(group) for group in groups]
    mixed: list[Prompt] = []
    while waiting:
        for group in list(waiting):
            prompt = next(group, None)
            if prompt is None:
                waiting.remove(group)
            else:
                mixed.append(prompt)
    return mixed


def distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts without those whose first turn or id was there before; white space and case are not looked at."""
    seen: set[str] = set()
    kept = []
    for prompt in prompts:
        marks = {"id/" + prompt.id, "turn/" + " ".join(prompt.turns[0].casefold().split())}
        if not marks & seen:
            kept.append(prompt)
        seen |= marks
    return kept
