"""Prompt lookup: what followed the last few tokens when they occurred before, in prompt or output, is the draft.

It costs no model step. The draft is certain: p^d is 1 for its tokens, so that under sampling a draft token x is
accepted with probability p^t(x) (dspark-spec, section 6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Int32
from dspark.errors import ConfigurationError

MIN_MATCH, MAX_MATCH = 3, 8          # shorter matches are mostly chance; longer ones no longer change the choice


@dataclass(frozen=True)
class LookupDraft:
    """gamma tokens, and how many tokens before them matched; none and 0 where nothing did."""

    tokens: Int32                    # [gamma] or [0]
    match_length: int


class PromptLookup:
    """The n-grams of one growing sequence, each with the place after its most recent occurrence.

    An n-gram enters the index when its successor is appended: so the end of the sequence never matches itself, and
    whatever matches has at least one token to draft. Appending or drafting costs max_match - min_match + 1 look-ups.
    Raises ConfigurationError unless 1 <= min_match <= max_match.
    """

    def __init__(self, min_match: int = MIN_MATCH, max_match: int = MAX_MATCH) -> None:
        if not 1 <= min_match <= max_match:
            raise ConfigurationError(f"min_match {min_match} and max_match {max_match}: 1 <= min <= max is expected")
        self._lengths = range(max_match, min_match - 1, -1)
        self._tokens: list[int] = []
        self._place_after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens of the prompt or of the committed output."""
        for token in tokens:
            place = len(self._tokens)
            for length in self._lengths:
                if length <= place:
                    self._place_after[tuple(self._tokens[place - length :])] = place
            self._tokens.append(int(token))

    def draft(self, gamma: int) -> LookupDraft:
        """The `gamma` tokens that followed the longest suffix, min_match to max_match long, that occurred before.

        Of its earlier occurrences the most recent counts. Where the sequence ends before the draft does, the draft
        goes on with its own tokens: a loop shorter than gamma is drafted round and round.
        """
        end = len(self._tokens)
        for length in self._lengths:
            if length <= end and (place := self._place_after.get(tuple(self._tokens[end - length :]))) is not None:
                return LookupDraft(np.resize(np.array(self._tokens[place : place + gamma], np.int32), gamma), length)
        return LookupDraft(np.zeros(0, np.int32), 0)
