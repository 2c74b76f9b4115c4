"""Prompt files: JSON lines `{"id": ..., "domain": ..., "turns": [...]}`, one prompt a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError

from dspark_client.transport import Message


@dataclass(frozen=True)
class Prompt:
    """One prompt; `dataset` is what stands before the last / of its id, or its file's name."""

    id: str
    domain: str
    turns: tuple[str, ...]
    dataset: str

    def first_turn(self) -> tuple[Message, ...]:
        """The conversation that asks for the first answer."""
        return (Message("user", self.turns[0]),)


def read_prompts(
    files: Sequence[Path], limit: int | None = None, skip: Callable[[str], None] | None = None,
) -> list[Prompt]:
    """The prompts of all files in order, at most `limit` of each.

    A bad line is told to `skip` and left out. Raises ConfigurationError naming file and line where there is no `skip`,
    and for a file that cannot be read or has no prompts.
    """
    return [prompt for file in files for prompt in _read_file(file, skip)[:limit]]


def _read_file(file: Path, skip: Callable[[str], None] | None) -> list[Prompt]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigurationError(f"prompts file {file} cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                prompts.append(_parse(line, f"{file}, line {number}", file.stem))
        except ConfigurationError as error:
            if skip is None:
                raise
            skip(str(error))
    if not prompts:
        raise ConfigurationError(f"prompts file {file} has no prompts")
    return prompts


def _parse(line: bytes, where: str, file_name: str) -> Prompt:
    try:
        values: Any = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where}: an object with id, domain and turns is expected")
    for name in ("id", "domain"):
        if not isinstance(values.get(name), str):
            raise ConfigurationError(f"{where}: {name} must be a string, not {values.get(name)!r}")
    turns = values.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ConfigurationError(f"{where}: turns must be a list of at least one non-empty string")
    prefix = values["id"].rpartition("/")[0]
    return Prompt(values["id"], values["domain"], tuple(turns), prefix or file_name)
