"""One pass of the drafter over a batch of blocks: from states to the losses of every position."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from dspark_build.models.contract import BlockDrafter
from dspark_build.training.blocks import BlockBatch
from dspark_build.training.losses import Losses, block_losses, position_weights
from dspark_build.training.vocabulary import Part


def batch_losses(drafter: BlockDrafter, batch: BlockBatch, part: Part, decay: float) -> Losses:
    """The three losses of a batch, teacher-forced, over what the drafter can draft of the vocabulary `part`."""
    part, rows = part.drafted_by(drafter)
    hidden = drafter.block_hidden(batch)
    valid = batch.valid
    latents = drafter.latents(hidden, batch.previous)[valid]
    head = drafter.lm_head.weight[rows]
    draft_logits = F.linear(hidden[valid], head)
    if drafter.config.markov_rank:
        draft_logits = draft_logits + F.linear(latents, drafter.markov_head.markov_w2.weight[rows])
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
