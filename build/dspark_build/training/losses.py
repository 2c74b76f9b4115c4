"""The three losses of a drafter (dspark-spec, section 3), over the whole vocabulary or a weighted part of it.

Axes: M block positions that have a label, S tokens of the vocabulary part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Losses(NamedTuple):
    """Scalars, each a mean over positions weighted by w_k."""

    cross_entropy: Tensor
    total_variation: Tensor
    confidence: Tensor

    def total(self, weights: tuple[float, float, float]) -> Tensor:
        """L = Σ of the three with their weights; published: (0.1, 0.9, 1.0)."""
        return sum(weight * loss for weight, loss in zip(weights, self, strict=True))  # type: ignore[return-value]


def position_weights(gamma: int, decay: float) -> Tensor:
    """w_k = exp(-(k-1)/decay) for k = 1..gamma [gamma]; published: decay 4 at gamma 7."""
    return torch.exp(-torch.arange(gamma) / decay)


def overlap(draft_logits: Tensor, teacher_logits: Tensor, teacher_log_z: Tensor, log_weights: Tensor) -> Tensor:
    """Σ_v min(p^d(v), p^t(v)) [M]: the chance that a draft token is accepted; ½‖p^d − p^t‖₁ is what it lacks to 1.

    Logits are [M, S], teacher_log_z [M] is over all of V. What p^t has outside the part counts as not overlapping.
    """
    return _overlap(torch.log_softmax(draft_logits + log_weights, -1), teacher_logits, teacher_log_z, log_weights)


def _overlap(draft_log_probs: Tensor, teacher_logits: Tensor, teacher_log_z: Tensor, log_weights: Tensor) -> Tensor:
    teacher = torch.exp(teacher_logits + log_weights - teacher_log_z[:, None])
    return torch.minimum(draft_log_probs.exp(), teacher).sum(-1)


def block_losses(
    draft_logits: Tensor,
    teacher_logits: Tensor,
    teacher_log_z: Tensor,
    log_weights: Tensor,
    label_places: Tensor,
    confidence_logits: Tensor | None,
    weights: Tensor,
) -> Losses:
    """L_ce, L_tv and L_conf of M positions.

    draft_logits and teacher_logits [M, S]; teacher_log_z [M]; log_weights [S]; label_places [M] is the column of x*_k,
    -1 where the part lacks it (no cross-entropy there); confidence_logits [M], None without a confidence head; weights
    [M] are w_k. The confidence's soft label is 1 − ½‖p^d − p^t‖₁ and passes no gradient.
    """
    log_probs = torch.log_softmax(draft_logits + log_weights, -1)
    known = label_places >= 0
    places = label_places.clamp(min=0)
    label_log_probs = log_probs.gather(-1, places[:, None]).squeeze(-1) - log_weights[places]
    accepted = _overlap(log_probs, teacher_logits, teacher_log_z, log_weights)
    total = weights.sum()
    cross_entropy = -(weights * known * label_log_probs).sum() / total
    # ‖p^d − p^t‖₁ = 2 (1 − Σ min), and the same gradient.
    total_variation = (weights * 2 * (1 - accepted)).sum() / total
    if confidence_logits is None:
        return Losses(cross_entropy, total_variation, torch.zeros_like(total))
    soft_labels = accepted.detach().clamp(0, 1)
    confidence = F.binary_cross_entropy_with_logits(confidence_logits, soft_labels, reduction="none")
    return Losses(cross_entropy, total_variation, (weights * confidence).sum() / total)
