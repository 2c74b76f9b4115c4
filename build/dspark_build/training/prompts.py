"""Prompt files: JSON lines of `{"id", "domain", "turns"}`, and which of them are held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError

HASH_RANGE = 1 << 64


@dataclass(frozen=True)
class Prompt:
    """One conversation to be answered; only its first turn is asked."""

    id: str
    domain: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class PromptFile:
    """The prompts of one file, and what was wrong with the lines that were skipped."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[str, ...]         # one message a bad line, with its line number


def read_prompts(path: Path, *, skip_bad_lines: bool = False) -> PromptFile:
    """Read one prompts file; empty lines are allowed.

    Raises ConfigurationError with file and line number for a line that is not a prompt (unless such lines are to be
    skipped), for a file that cannot be read, and for one without any prompt.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(f"prompts file {path} cannot be read: {error}") from error
    prompts: list[Prompt] = []
    skipped: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _parse(line)
            if prompt.id in seen:
                raise ValueError(f"id {prompt.id!r} was there before")
        except ValueError as error:
            message = f"{path}:{number}: {error}"
            if not skip_bad_lines:
                raise ConfigurationError(message) from error
            skipped.append(message)
        else:
            seen.add(prompt.id)
            prompts.append(prompt)
    if not prompts:
        raise ConfigurationError(f"prompts file {path} holds no prompt")
    return PromptFile(tuple(prompts), tuple(skipped))


def _parse(line: bytes) -> Prompt:
    try:
        values: Any = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"not JSON in UTF-8 ({error})") from error
    if not isinstance(values, dict):
        raise ValueError('expected a JSON object {"id", "domain", "turns"}')
    for field in ("id", "domain"):
        if not isinstance(values.get(field), str) or not values[field]:
            raise ValueError(f"{field} must be a non-empty string, not {values.get(field)!r}")
    turns = values.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError("turns must be a non-empty list of non-empty strings")
    return Prompt(values["id"], values["domain"], tuple(turns))


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
