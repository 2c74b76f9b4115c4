"""Prompt files: JSON lines `{"id": ..., "domain": ..., "turns": [...]}`, one prompt a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError


@dataclass(frozen=True)
class Prompt:
    """One conversation to be answered; `dataset` is what stands before the last / of its id, or its file's name."""

    id: str
    domain: str
    turns: tuple[str, ...]           # at least one, none of them empty
    dataset: str = ""


@dataclass(frozen=True)
class PromptFile:
    """The prompts of one file in order, and what was wrong with the lines that were left out."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[str, ...]         # one message a bad line, with file and line number


def read_prompt_file(path: Path, *, skip_bad_lines: bool = False, unique_ids: bool = False) -> PromptFile:
    """Read one prompts file; empty lines are allowed.

    Raises ConfigurationError with file and line number for a line that is not a prompt, or repeats an id where ids must
    be unique (unless such lines are to be skipped), for a file that cannot be read, and for one without any prompt.
    """
    try:
        lines = path.read_bytes().split(b"\n")       # at newlines alone: JSON may hold other separators
    except OSError as error:
        raise ConfigurationError(f"prompts file {path} cannot be read: {error}") from error
    prompts: list[Prompt] = []
    skipped: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _parse(line, path.stem)
            if unique_ids and prompt.id in seen:
                raise ValueError(f"id {prompt.id!r} was there before")
        except ValueError as error:
            message = f"{path}, line {number}: {error}"
            if not skip_bad_lines:
                raise ConfigurationError(message) from error
            skipped.append(message)
        else:
            seen.add(prompt.id)
            prompts.append(prompt)
    if not prompts:
        raise ConfigurationError(f"prompts file {path} has no prompts")
    return PromptFile(tuple(prompts), tuple(skipped))


def _parse(line: bytes, file_name: str) -> Prompt:
    try:
        values: Any = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON in UTF-8 ({error})") from error
    if not isinstance(values, dict):
        raise ValueError("an object with id, domain and turns is expected")
    for name in ("id", "domain"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise ValueError(f"{name} must be a non-empty string, not {values.get(name)!r}")
    turns = values.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError("turns must be a list of at least one non-empty string")
    return Prompt(values["id"], values["domain"], tuple(turns), values["id"].rpartition("/")[0] or file_name)
