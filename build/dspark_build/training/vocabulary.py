"""The part of the vocabulary that one training step computes: the head over V is most of its cost.

Three ways: all of V; the `frequent` most frequent tokens of the training data; or those, the step's own labels and
`sampled` others drawn evenly, whose terms in every sum over V are weighted by the inverse of their chance, so that sums
keep their expectation and every row of W2 is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from dspark.engines.contract import Int32
from torch import Tensor

from dspark_build.models.contract import BlockDrafter
from dspark_build.models.drafter import Drafter
from dspark_build.training.blocks import Int64
from dspark_build.training.data import TrainingSequence
from dspark_build.training.responses import read_responses, shard_numbers


class Part(NamedTuple):
    """S tokens that stand for all of V: a sum over V is estimated by Σ_s exp(log_weights_s) f(ids_s)."""

    ids: Tensor                      # [S] rising
    log_weights: Tensor              # [S] 0 for tokens that stand for themselves alone

    def drafted_by(self, drafter: BlockDrafter) -> tuple[Part, Tensor]:
        """The tokens that `drafter` can draft, and the rows of its head and W2 that are theirs.

        With a reduced vocabulary they estimate sums over it alone.
        """
        if drafter.d2t is None:
            return self, self.ids
        drafted = drafter.target_ids(torch.arange(len(drafter.d2t), device=self.ids.device))
        rows = torch.searchsorted(drafted, self.ids).clamp(max=len(drafted) - 1)
        known = drafted[rows] == self.ids
        return Part(self.ids[known], self.log_weights[known]), rows[known]


@dataclass(frozen=True)
class TrainingVocabulary:
    size: int                        # V
    frequent: Int64                  # [F] rising; all of V where no part is taken
    sampled: int                     # drawn for every step from the others; 0: the others are never trained

    def part(self, labels: Tensor, random: np.random.Generator) -> Part:
        """The tokens of one step whose labels are given (any shape)."""
        device = labels.device
        if not self.sampled or len(self.frequent) == self.size:
            return Part(torch.from_numpy(self.frequent).to(device), torch.zeros(len(self.frequent), device=device))
        own = np.union1d(self.frequent, labels.cpu().numpy())
        others = np.setdiff1d(np.arange(self.size), own, assume_unique=True)
        drawn = random.choice(others, size=min(self.sampled, len(others)), replace=False)
        ids = np.concatenate([own, drawn])
        weights = np.zeros(len(ids), np.float32)
        if len(drawn):
            weights[len(own) :] = np.log(len(others) / len(drawn))
        order = np.argsort(ids)
        return Part(torch.from_numpy(ids[order]).to(device), torch.from_numpy(weights[order]).to(device))

    def fill_untrained_rows(self, drafter: Drafter) -> None:
        """Give tokens that were never trained the mean row of W2.

        Within a fixed part the softmax does not see a row common to all of W2, so training leaves one there by chance;
        outside it that row would be missing, and those tokens would be favoured or hidden at random.
        """
        if self.sampled or len(self.frequent) == self.size or not drafter.config.markov_rank:
            return
        rows = drafter.markov_head.markov_w2.weight.data
        untrained = torch.ones(self.size, dtype=torch.bool, device=rows.device)
        untrained[torch.from_numpy(self.frequent).to(rows.device)] = False
        untrained = untrained[drafter.draft_vocabulary()]
        rows[untrained] = rows[~untrained].mean(0)


def choose_vocabulary(
    sequences: Iterable[TrainingSequence], size: int, frequent: int, sampled: int
) -> TrainingVocabulary:
    """The `frequent` most frequent tokens of prompts and responses (0: all of V); ties go to the smaller id."""
    if not frequent or frequent >= size:
        return TrainingVocabulary(size, np.arange(size), 0)
    return TrainingVocabulary(size, most_frequent((sequence.tokens for sequence in sequences), size, frequent), sampled)


def response_vocabulary(responses: Path, size: int, count: int) -> Int64:
    """The `count` most frequent tokens [count], rising, of a response folder's prompts and responses: to draft from."""
    return most_frequent((read_responses(responses, number).tokens for number in shard_numbers(responses)), size, count)


def most_frequent(texts: Iterable[Int32], size: int, count: int) -> Int64:
    """Ids [count], rising, of the tokens that are most frequent in `texts`; ties go to the smaller id."""
    counts = np.zeros(size, np.int64)
    for tokens in texts:
        counts += np.bincount(tokens, minlength=size)
    return np.sort(np.argsort(-counts, kind="stable")[:count])
