"""Results as JSON, which is the interface for scripts, and the list of concurrencies that measuring verbs take."""

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
        try:
            json_file.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{json_file} cannot be written: {error}") from error


def parse_concurrency(text: str) -> list[int]:
    """`1,8,16` as numbers. Raises ConfigurationError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"concurrency {text!r}: positive numbers are expected, such as 1,16")
    return [int(part) for part in parts]
