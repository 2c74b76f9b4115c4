"""One thing that was looked at, whether it is as it should be, and what to do if not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """A stop keeps the server that was asked about from starting; advice does not."""

    good = "ok"
    advice = "advice"
    stop = "stop"


@dataclass(frozen=True)
class Finding:
    """`about` is a part of the machine, a package or an engine; `do` is empty where all is well."""

    about: str
    found: str
    level: Level = Level.good
    do: str = ""


def advised(about: str, found: str, do: str) -> Finding:
    """Something that costs speed or certainty."""
    return Finding(about, found, Level.advice, do)


def stopped(about: str, found: str, do: str) -> Finding:
    """Something without which the server does not start."""
    return Finding(about, found, Level.stop, do)
