"""What earlier rounds teach about the next: acceptance expected of lookup drafts and of drafted blocks."""

from __future__ import annotations

from dspark.scheduling.drift import SurvivalDrift
from dspark.scheduling.expectation import BlockExpectation
from dspark.scheduling.lookup_confidence import LookupConfidence


class AcceptanceMemory:
    """The record of one server, over all its sequences; greedy and sampled requests apart. Of constant size."""

    def __init__(self, gamma: int) -> None:
        self.lookups = LookupConfidence(gamma)
        self.blocks = BlockExpectation(gamma)
        self.drift = {greedy: SurvivalDrift(gamma) for greedy in (True, False)}

    def parted_positions(self) -> int:
        """Positions where drafts of greedy or of sampled requests are accepted otherwise than calibrated."""
        return int((self.drift[True].parted() | self.drift[False].parted()).sum())
