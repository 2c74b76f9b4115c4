"""Text as it grows: tokens to characters without halves, and stop strings across token borders."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


class IncrementalDetokenizer:
    """Turns a growing sequence of tokens into text, never half a character; O(1) a token.

    Works on the bytes behind the tokens, so that a character split over tokens is whole or absent. Bytes that can never
    become a character give U+FFFD; an unfinished character at the end of the output is left out.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes."""
        known = token < len(self._token_bytes)        # a model's vocabulary may be padded beyond its tokenizer's
        return self._decoder.decode(self._token_bytes[token]) if known else ""


@dataclass(frozen=True)
class Release:
    """Text that may be shown, and whether a stop string ended it."""

    text: str
    stopped: bool


class StopChecker:
    """Holds text back while it may be the start of a stop string; the stop string itself is never released."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stop_strings = tuple(stop_strings)
        self._longest = max(map(len, self._stop_strings), default=0)
        self._held = ""

    def push(self, text: str) -> Release:
        """What `text` releases; once `stopped`, everything before the stop string has been released."""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop_strings) if at >= 0]
        if found:
            self._held = ""
            return Release(text[: min(found)], stopped=True)
        held = self._possible_start(text)
        self._held = text[len(text) - held :]
        return Release(text[: len(text) - held], stopped=False)

    def flush(self) -> str:
        """The text still held back, for an output that ends without a stop string."""
        text, self._held = self._held, ""
        return text

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stop_strings):
                return length
        return 0
