"""How likely a lookup draft is to survive, judged by the length of its match and what became of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.drafting.lookup import MAX_MATCH, MIN_MATCH
from dspark.scheduling.confidence import Float64

PRIOR = {True: 0.6, False: 0.25}     # acceptance before anything was seen, greedy or sampled: a mild guess
PRIOR_WEIGHT = 4.0                   # observations that the guess, and for a sequence the common record, counts for
KEEP = 0.998                         # of the common record, per observation: a few hundred observations are remembered
KEEP_OWN = 0.9                       # of a sequence's own record: a loop that ends is noticed in a few tokens
MOST = 0.98


@dataclass
class LookupRecord:
    """A sequence's own lookup drafts: decayed counts of tokens judged, and of those that were right."""

    right: float = 0.0
    judged: float = 0.0


class LookupConfidence:
    """Acceptance of a lookup token by the length of the match before it, greedy and sampled apart.

    The token after an accepted one has a match longer by one. Nothing here looks at the draft's tokens, only at match
    lengths and at earlier rounds.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._counts = {
            greedy: np.tile([PRIOR[greedy] * PRIOR_WEIGHT, PRIOR_WEIGHT], (MAX_MATCH + 1, 1)) for greedy in PRIOR
        }                                                     # [match, (right, judged)]

    def survival(self, match: int, length: int, greedy: bool, own: LookupRecord) -> Float64:
        """a_j [gamma] of a draft of `length` tokens after a match of `match` tokens; 0 beyond the draft."""
        result = np.zeros(self._gamma)
        if length:
            right, judged = self._counts[greedy][self._matches(match, length)].T
            conditional = (PRIOR_WEIGHT * right / judged + own.right) / (PRIOR_WEIGHT + own.judged)
            result[:length] = np.minimum(conditional, MOST).cumprod()
        return result

    def observe(self, match: int, right: int, judged: int, greedy: bool, own: LookupRecord) -> None:
        """Of a draft after `match` tokens the first `judged` tokens met the output; the first `right` were right."""
        counts = self._counts[greedy]
        for number, place in enumerate(self._matches(match, judged)):
            counts[place] *= KEEP
            counts[place] += (number < right, 1.0)
            own.right = own.right * KEEP_OWN + (number < right)
            own.judged = own.judged * KEEP_OWN + 1.0

    @staticmethod
    def _matches(match: int, length: int) -> list[int]:
        return [min(max(match, MIN_MATCH) + j, MAX_MATCH) for j in range(length)]
