"""What to expect of a drafted block before it is drafted, from the confidences of earlier blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.scheduling.confidence import Float64

FIRST_GUESS = 0.6                    # conditional acceptance before any block was drafted: worth trying
KEEP = 0.98                          # of the common mean, per block
KEEP_OWN = 0.75                      # of a sequence's own mean, per block
PRIOR_BLOCKS = 2.0                   # blocks of its own that the common mean counts for


@dataclass
class BlockRecord:
    """A sequence's own blocks: how many, and the mean of their conditional acceptance [gamma]."""

    blocks: int = 0
    conditional: Float64 | None = None


class BlockExpectation:
    """Mean conditional acceptance by position over earlier blocks, of all sequences and of each, greedy and sampled."""

    def __init__(self, gamma: int) -> None:
        self._common = {greedy: np.full(gamma, FIRST_GUESS) for greedy in (True, False)}

    def survival(self, greedy: bool, own: BlockRecord) -> Float64:
        """a_j [gamma] to expect of the sequence's next block."""
        conditional = self._common[greedy]
        if own.conditional is not None:
            weight = own.blocks / (own.blocks + PRIOR_BLOCKS)
            conditional = weight * own.conditional + (1.0 - weight) * conditional
        result: Float64 = conditional.cumprod()
        return result

    def observe(self, conditional: Float64, greedy: bool, own: BlockRecord) -> None:
        """A block of this conditional acceptance [gamma], as calibrated and corrected, was drafted."""
        common = self._common[greedy]
        common += (1.0 - KEEP) * (conditional - common)
        if own.conditional is None:
            own.conditional = conditional.copy()
        else:
            own.conditional += (1.0 - KEEP_OWN) * (conditional - own.conditional)
        own.blocks += 1
