"""One pass of the drafter over a batch of blocks: from states to the losses of every position."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark_build.models.drafter import Drafter
from dspark_build.training.blocks import BlockBatch
from dspark_build.training.losses import Losses, block_losses, position_weights
from dspark_build.training.vocabulary import Part


def block_hidden(drafter: Drafter, batch: BlockBatch) -> Tensor:
    """h [N, A, gamma, d] of all blocks in one pass."""
    embeddings = drafter.block_embeddings(batch.anchors)
    hidden = drafter.backbone(
        embeddings.flatten(1, 2),
        drafter.block_positions(batch.anchor_positions).flatten(1),
        drafter.context_features(batch.taps),
        batch.mask,
    )
    return hidden.view_as(embeddings)


def batch_losses(drafter: Drafter, batch: BlockBatch, part: Part, decay: float) -> Losses:
    """The three losses of a batch, teacher-forced, over the vocabulary `part`."""
    hidden = block_hidden(drafter, batch)
    valid = batch.valid
    latents = drafter.latents(hidden, batch.previous)[valid]
    head = drafter.lm_head.weight[part.ids]
    draft_logits = F.linear(hidden[valid], head)
    if drafter.config.markov_rank:
        draft_logits = draft_logits + F.linear(latents, drafter.markov_head.markov_w2.weight[part.ids])
    teacher_logits = F.linear(batch.teacher_hidden, head)[batch.teacher_rows[valid]]
    labels = batch.labels[valid]
    places = torch.searchsorted(part.ids, labels).clamp(max=len(part.ids) - 1)
    confidence = None
    if drafter.config.confidence_head:
        confidence = drafter.confidence_logits(hidden, batch.previous)[valid]
    weights = position_weights(drafter.config.block_size, decay).to(hidden.device).expand(valid.shape)[valid]
    return block_losses(
        draft_logits.float(),
        teacher_logits.float(),
        batch.teacher_log_z[batch.teacher_rows[valid]],
        part.log_weights,
        torch.where(part.ids[places] == labels, places, -1),
        None if confidence is None else confidence.float(),
        weights,
    )
