"""Prompt lookup against its definition, sequence by sequence."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.drafting import PromptLookup
from dspark.errors import ConfigurationError
from hypothesis import given, settings
from hypothesis import strategies as st


def by_definition(tokens: list[int], gamma: int, shortest: int, longest: int) -> tuple[list[int], int]:
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[len(tokens) - length :]:
                found = tokens[start + length : start + length + gamma]
                return [found[i % len(found)] for i in range(gamma)], length
    return [], 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 5))
def test_every_draft_of_a_growing_sequence_is_the_one_of_the_definition(tokens, gamma, shortest, extra):
    lookup = PromptLookup(shortest, shortest + extra)
    for end, token in enumerate(tokens, 1):
        lookup.extend([token])
        draft = lookup.draft(gamma)
        assert (draft.tokens.tolist(), draft.match_length) == by_definition(
            tokens[:end], gamma, shortest, shortest + extra
        )


def test_the_longest_match_wins_over_a_more_recent_shorter_one():
    lookup = PromptLookup(2, 4)
    lookup.extend([1, 2, 3, 9, 2, 3, 7, 1, 2, 3])
    draft = lookup.draft(2)
    assert draft.tokens.tolist() == [9, 2] and draft.match_length == 3


def test_the_most_recent_of_equally_long_matches_wins():
    lookup = PromptLookup(2, 2)
    lookup.extend([1, 2, 8, 1, 2, 9, 1, 2])
    assert lookup.draft(1).tokens.tolist() == [9]


def test_a_loop_shorter_than_the_draft_is_drafted_round_and_round():
    lookup = PromptLookup(2, 4)
    lookup.extend([9, 1, 2, 3, 1, 2, 3])
    assert lookup.draft(7).tokens.tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_a_draft_is_empty_without_a_match():
    lookup = PromptLookup()
    lookup.extend([5, 5, 5, 5])
    assert lookup.draft(3).tokens.tolist() == [5, 5, 5]
    lookup.extend(np.array([6], np.int32))
    assert lookup.draft(7).tokens.size == 0 and lookup.draft(7).match_length == 0


@pytest.mark.parametrize("lengths", [(0, 3), (4, 3)])
def test_impossible_match_lengths_are_refused(lengths):
    with pytest.raises(ConfigurationError, match="min_match"):
        PromptLookup(*lengths)
