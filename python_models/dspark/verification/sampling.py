"""The sampling settings of one request as scalars."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engines.contract import SamplingArrays


@dataclass(frozen=True)
class SamplingSettings:
    """Sampling settings of one request; the defaults are all off. Values are validated where requests are parsed."""

    temperature: float = 1.0         # 0: greedy
    top_k: int = 0                   # 0: off
    top_p: float = 1.0               # 1: off
    min_p: float = 0.0               # 0: off
    repetition_penalty: float = 1.0  # 1: off

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @staticmethod
    def row(arrays: SamplingArrays, r: int) -> SamplingSettings:
        """The settings of request r of a step."""
        return SamplingSettings(
            temperature=float(arrays.temperature[r]),
            top_k=int(arrays.top_k[r]),
            top_p=float(arrays.top_p[r]),
            min_p=float(arrays.min_p[r]),
            repetition_penalty=float(arrays.repetition_penalty[r]),
        )
