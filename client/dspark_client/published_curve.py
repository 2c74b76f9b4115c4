"""Step times from a published table of plain decoding: tokens/s by concurrency, and nothing else.

At concurrency C plain decoding takes C tokens a step, so its step takes C / (tokens a second). Assumed with that:
- a step's time depends on its B tokens alone: a draft to verify costs what another request's token costs, though it
  shares its sequence's KV cache and needs no batch place of its own;
- between the table's B it is linear, below the least B constant, beyond the largest it rises as before it;
- the published rate is all step time: host time is part of the step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dspark.errors import ConfigurationError

Float64 = npt.NDArray[np.float64]
TABLE, DRAFTER = "plain_tokens_per_second", "drafter_seconds"
EXPECTED = f'{{"{TABLE}": {{"4": 382.0, "8": 729.0}}, "{DRAFTER}": 0.004}}'


@dataclass(frozen=True)
class PublishedCosts:
    """Times of steps (dspark.scheduling.StepCosts); a step never takes less time for having more tokens."""

    tokens: Float64                  # [N] ascending
    seconds: Float64                 # [N] non-decreasing
    drafting_sequences: Float64      # [M] ascending
    drafting_seconds: Float64        # [M]

    def target_seconds(self, sequences: int, tokens: npt.NDArray[np.int64], context: float) -> Float64:
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.tokens[-1] - self.tokens[-2])
        beyond = np.maximum(0.0, tokens - self.tokens[-1])
        result: Float64 = np.interp(tokens, self.tokens, self.seconds) + slope * beyond
        return result

    def drafter_seconds(self, sequences: int) -> float:
        return float(np.interp(sequences, self.drafting_sequences, self.drafting_seconds))

    @staticmethod
    def of(document: Mapping[str, Any]) -> PublishedCosts:
        """From {"plain_tokens_per_second": {C: rate}} and "drafter_seconds", a number or {R: seconds}; absent: 0.

        Raises ConfigurationError for a table that cannot be understood, or of less than two concurrencies.
        """
        try:
            rates = sorted((int(c), float(rate)) for c, rate in document[TABLE].items())
            given = document.get(DRAFTER, 0.0)
            by_sequences = given if isinstance(given, dict) else {1: given}
            drafting = sorted((int(r), float(seconds)) for r, seconds in by_sequences.items())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"a published table such as {EXPECTED} is expected ({error!r})") from error
        if len(rates) < 2 or not drafting or min(min(pair) for pair in rates) <= 0 or min(s for _, s in drafting) < 0:
            raise ConfigurationError(
                f"a published table needs positive tokens/s of two concurrencies or more, such as {EXPECTED}"
            )
        concurrencies, speeds = np.array(rates, np.float64).T
        sequences, seconds = np.array(drafting, np.float64).T
        return PublishedCosts(concurrencies, np.maximum.accumulate(concurrencies / speeds), sequences, seconds)


def is_published_table(path: Path) -> bool:
    """Whether a JSON file is such a table. Raises ConfigurationError where it is no JSON object."""
    return TABLE in read_object(path)


def read_object(path: Path) -> Mapping[str, Any]:
    """Raises ConfigurationError where the file cannot be read as a JSON object."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: a JSON object is expected")
    return document
