"""Sampling of a draft block: γ dependent draws from p^d, unrolled to export as one graph (dspark-spec, 2 and 6).

p^d is the softmax over the K most likely tokens, renormalised. What is returned is the very vector that was drawn
from: the acceptance rule divides by it. Draft ids of a reduced vocabulary become target ids here, before a token is
given to the next position or leaves the drafter.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark_build.models.coupling import Noise, coupled_places

CANDIDATES = 64   # K, at most; the architecture's choice: an exact distribution that is small enough to send
GROUP = 64        # entries under one maximum in the two-stage search: the quickest of 16..128 at V = 49152


class Head(Protocol):
    """What the sampler needs of a drafter."""

    @property
    def draft_vocabulary_size(self) -> int: ...

    def target_ids(self, draft_ids: Tensor) -> Tensor: ...

    def start_head(self, hidden: Tensor) -> Tensor | None: ...

    def head_step(
        self, hidden: Tensor, base_logits: Tensor, previous_tokens: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]: ...


class DraftBlock(NamedTuple):
    """A drafted block; the fields are those of `DrafterResult`."""

    tokens: Tensor              # [R, gamma] int32
    confidence_logits: Tensor   # [R, gamma]
    draft_ids: Tensor           # [R, gamma, K] int32
    draft_probs: Tensor         # [R, gamma, K]


def most_likely(logits: Tensor, vocabulary_size: int, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of `logits` [R, V] in falling order: values and ids [R, count].

    Exact in two stages: an entry among the `count` largest lies in a group whose maximum is among the `count` largest
    group maxima, so only those groups are searched. A single search over V costs two to three times as much.
    """
    groups = -(-vocabulary_size // GROUP)
    if groups <= count:
        return torch.topk(logits, count, dim=-1)
    padding = groups * GROUP - vocabulary_size
    if padding:
        logits = F.pad(logits, (0, padding), value=float("-inf"))
    grouped = logits.reshape(-1, groups, GROUP)
    kept_groups = torch.topk(grouped.amax(-1), count, dim=-1).indices
    kept = torch.gather(grouped, 1, kept_groups.unsqueeze(-1).expand(-1, -1, GROUP))
    values, places = torch.topk(kept.flatten(1), count, dim=-1)
    group_ids = torch.gather(kept_groups, 1, torch.div(places, GROUP, rounding_mode="floor"))
    return values, group_ids * GROUP + places % GROUP


def candidate_probabilities(values: Tensor, temperatures: Tensor) -> Tensor:
    """p^d [R, K] of the candidates' logits [R, K] in falling order; temperature 0 puts all on the first."""
    greedy = (temperatures <= 0).unsqueeze(-1)
    divisor = torch.where(greedy, torch.ones_like(values), temperatures.unsqueeze(-1))
    weights = torch.exp((values - values[:, :1]) / divisor)
    sampled = weights / weights.sum(-1, keepdim=True)
    first = F.pad(torch.ones_like(values[:, :1]), (0, values.shape[-1] - 1))
    return torch.where(greedy, first, sampled)


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Places [R, 1] drawn from `probabilities` [R, K] by inverse CDF of `uniforms` [R] in [0, 1).

    Rounding may leave the sum below a uniform close to 1: the last candidate with a probability above 0 takes the rest.
    """
    passed = (torch.cumsum(probabilities, -1) <= uniforms.unsqueeze(-1)).to(torch.int64).sum(-1, keepdim=True)
    last = (probabilities > 0).to(torch.int64).sum(-1, keepdim=True) - 1
    return torch.minimum(passed, last)


def sample_block(
    head: Head, hidden: Tensor, base_logits: Tensor, anchors: Tensor, temperatures: Tensor, uniforms: Tensor,
    noise: Noise | None = None,
) -> DraftBlock:
    """Draw x_1..x_gamma from h [R, gamma, d] and U [R, gamma, Vd], each given its predecessor (x_0: the anchor [R]).

    Drawn by uniforms [R, gamma]; where `noise` says so, by the target's noise instead.
    """
    count = min(CANDIDATES, head.draft_vocabulary_size)
    state = head.start_head(hidden[:, 0])
    previous = anchors
    tokens, confidences, ids, probabilities = [], [], [], []
    for k in range(base_logits.shape[1]):
        logits, confidence, state = head.head_step(hidden[:, k], base_logits[:, k], previous, state)
        values, columns = most_likely(logits, head.draft_vocabulary_size, count)
        candidate_ids = head.target_ids(columns)
        candidate_probs = candidate_probabilities(values, temperatures)
        place = draw(candidate_probs, uniforms[:, k])
        if noise is not None:
            chosen = coupled_places(candidate_probs, candidate_ids, noise.keys[:, k])
            place = torch.where(noise.coupled.unsqueeze(-1), chosen, place)
        previous = torch.gather(candidate_ids, 1, place).squeeze(1)
        tokens.append(previous)
        confidences.append(confidence)
        ids.append(candidate_ids)
        probabilities.append(candidate_probs)
    return DraftBlock(
        torch.stack(tokens, 1).to(torch.int32),
        torch.stack(confidences, 1),
        torch.stack(ids, 1).to(torch.int32),
        torch.stack(probabilities, 1),
    )
