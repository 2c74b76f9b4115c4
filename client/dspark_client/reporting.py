"""Results as JSON, which is the interface for scripts, and the lists of numbers that measuring verbs take."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError


def report(result: Any, json_file: Path | None) -> None:
    """Print a result record as JSON, and write it to a file if one is named. Raises ConfigurationError."""
    text = json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False)
    print(text)
    if json_file is not None:
        write(json_file, text + "\n")


def write(file: Path, text: str) -> None:
    """Raises ConfigurationError where the file cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error}") from error


def parse_numbers(name: str, text: str) -> list[int]:
    """`1,8,16` as numbers; `name` says of what. Raises ConfigurationError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"{name} {text!r}: positive numbers are expected, such as 1,16")
    return [int(part) for part in parts]


def parse_rates(name: str, text: str) -> list[float]:
    """`0.5,1` as numbers; `name` says of what. Raises ConfigurationError."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ConfigurationError(f"{name} {text!r}: positive numbers are expected, such as 0.5,1")
    return rates
