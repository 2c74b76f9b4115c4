"""The prompts that a verb is given, and the conversations that they begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dspark.prompts import Prompt, read_prompt_file

from dspark_client.transport import Message

__all__ = ["Prompt", "first_turn", "read_prompts"]


def read_prompts(
    files: Sequence[Path], limit: int | None = None, skip: Callable[[str], None] | None = None,
) -> list[Prompt]:
    """The prompts of all files in order, at most `limit` of each.

    A bad line is told to `skip` and left out. Raises ConfigurationError naming file and line where there is no `skip`,
    and for a file that cannot be read or has no prompts.
    """
    found: list[Prompt] = []
    for file in files:
        read = read_prompt_file(file, skip_bad_lines=skip is not None)
        for message in read.skipped if skip is not None else ():
            skip(message)
        found.extend(read.prompts[:limit])
    return found


def first_turn(prompt: Prompt) -> tuple[Message, ...]:
    """The conversation that asks for the first answer."""
    return (Message("user", prompt.turns[0]),)
