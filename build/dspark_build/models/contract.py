"""What the trainer asks of a drafter, whatever its kind: hidden states of many blocks at once, from true tokens.

Axes: N sequences, A blocks a sequence, gamma block size, C context rows, Q = A * gamma block rows.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn


class Blocks(Protocol):
    """Blocks that share the contexts of their sequences; the anchor x_0 of each sits at its `anchor_positions`."""

    @property
    def taps(self) -> Tensor: ...                # [N, C, m * d]

    @property
    def context_tokens(self) -> Tensor: ...      # [N, C + 1] the tokens at positions 0..C

    @property
    def anchor_positions(self) -> Tensor: ...    # [N, A]

    @property
    def previous(self) -> Tensor: ...            # [N, A, gamma] x_{k-1} for k = 1..gamma, the true ones

    @property
    def mask(self) -> Tensor: ...                # [N, Q, C + Q] where a block row may look


class BlockDrafter(Protocol):
    """A drafter as trained and evaluated; logits of position k are lm_head(h_k) + W2 latents_k."""

    config: Any                                  # block_size, target_layer_ids, model, markov_rank, confidence_head
    lm_head: nn.Linear
    d2t: Tensor | None                           # see `Drafter`; None: all of V can be drafted

    def block_hidden(self, blocks: Blocks) -> Tensor:
        """h [N, A, gamma, d] after the final norm: position k is given x_0..x_{k-1}, of which it may read less."""
        ...

    def latents(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Latents [..., gamma, r] of h [..., gamma, d] and x_{k-1} [..., gamma]; r is 0 without a sequential head."""
        ...

    def head_logits(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Logits [..., gamma, Vd] of h [..., gamma, d] and x_{k-1} [..., gamma]."""
        ...

    def confidence_logits(self, hidden: Tensor, previous_tokens: Tensor) -> Tensor:
        """Logits of c_k [...] of h_k [..., d] and x_{k-1} [...]; NaN without a confidence head."""
        ...

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The tokens [...] that columns `draft_ids` [...] of the logits stand for."""
        ...
