"""The sequential heads of the drafter: each block position learns its predecessor (dspark-spec, section 2).

A head turns the pair (h_k, x_{k-1}) into a latent of width r, and one shared matrix W2 turns latents into the bias
B_k over the draft vocabulary: V, or a part of Vd tokens (W1 is over V in any case). Training on a part of the
vocabulary therefore needs the latents alone.
Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VanillaMarkovHead(nn.Module):
    """B_k = W1[x_{k-1}] W2."""

    def __init__(self, vocabulary_size: int, draft_vocabulary_size: int, rank: int, hidden_size: int) -> None:
        super().__init__()
        self.rank = rank
        self.markov_w1 = nn.Embedding(vocabulary_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocabulary_size, bias=False)

    def start(self, hidden: Tensor) -> Tensor | None:
        """State before the first position; `hidden` is h_1 [..., d]."""
        return None

    def latent(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Latent [..., r] and the next state from h_k [..., d] and W1[x_{k-1}] [..., r]."""
        return previous, state

    def bias(self, latent: Tensor) -> Tensor:
        """B_k [..., Vd] of latents [..., r]."""
        return self.markov_w2(latent)


class GatedMarkovHead(VanillaMarkovHead):
    """B_k = (σ(W_gate [h_k ; W1[x_{k-1}]] + b) ⊙ W1[x_{k-1}]) W2."""

    def __init__(self, vocabulary_size: int, draft_vocabulary_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocabulary_size, draft_vocabulary_size, rank, hidden_size)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def latent(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return torch.sigmoid(self.gate_proj(torch.cat([hidden, previous], -1))) * previous, state


class RnnHead(VanillaMarkovHead):
    """z_k = [s_{k-1} ; W1[x_{k-1}] ; h_k] → gate g, candidate c, output o; s_k = σ(g)⊙s_{k-1} + (1-σ(g))⊙tanh(c).

    B_k = tanh(o) W2, s_0 = 0.
    """

    def __init__(self, vocabulary_size: int, draft_vocabulary_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocabulary_size, draft_vocabulary_size, rank, hidden_size)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def start(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(()).expand(*hidden.shape[:-1], self.rank)

    def latent(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if state is None:
            state = self.start(hidden)
        gate, candidate, output = self.joint_proj(torch.cat([state, previous, hidden], -1)).chunk(3, -1)
        keep = torch.sigmoid(gate)
        return torch.tanh(output), keep * state + (1 - keep) * torch.tanh(candidate)


class ConfidenceHead(nn.Module):
    """logit c_k = w·[h_k ; W1[x_{k-1}]] + b, or w·h_k + b without the Markov embedding."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [...] of features [..., d + r]."""
        return self.proj(features).squeeze(-1)


HEADS: dict[str, type[VanillaMarkovHead]] = {
    "vanilla": VanillaMarkovHead,
    "gated": GatedMarkovHead,
    "rnn": RnnHead,
}
