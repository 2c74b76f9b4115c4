"""The noise of coupled verification inside a graph, bit for bit that of `dspark.verification.coupling`.

Integers are int32 with wrap-around, the only kind that every runtime multiplies; a logical shift is an arithmetic one
and a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from dspark.verification.coupling import GOLDEN, LAST_SHIFT, ROUNDS
from torch import Tensor

LARGEST = 1.0 - 2.0**-24             # of W in fp32, so that E stays finite


class Noise(NamedTuple):
    """What R requests draw their drafts by: the target's noise where `coupled`, else uniforms."""

    keys: Tensor                     # [R, gamma] int32, of the positions that the drafts will take
    coupled: Tensor                  # [R] bool


def noise_hashes(keys: Tensor, tokens: Tensor) -> Tensor:
    """32 random bits [R, K] as int32 for each of `tokens` [R, K] under the key [R] of its row."""
    bits = keys.to(torch.int32).unsqueeze(-1) ^ (tokens.to(torch.int32) * _signed(GOLDEN))
    for shift, factor in ROUNDS:
        bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
    return bits ^ _shifted(bits, LAST_SHIFT)


def coupled_places(probabilities: Tensor, tokens: Tensor, keys: Tensor) -> Tensor:
    """Places [R, 1] of the choices argmin E_v / p(v) among `tokens` [R, K] of `probabilities` [R, K]."""
    upper = _shifted(noise_hashes(keys, tokens), 1)                    # the upper 31 bits, which are no sign
    uniforms = ((upper.to(torch.float32) + 0.5) * 2.0**-31).clamp(max=LARGEST)
    exponential = torch.maximum(-torch.log1p(-uniforms), uniforms)     # E >= W, which rounding must not undo
    return torch.argmin(exponential / probabilities, -1, keepdim=True)


def _shifted(bits: Tensor, shift: int) -> Tensor:
    """Logical shift to the right."""
    return (bits >> shift) & ((1 << (32 - shift)) - 1)


def _signed(constant: int) -> int:
    return constant - (1 << 32) if constant >= 1 << 31 else constant
