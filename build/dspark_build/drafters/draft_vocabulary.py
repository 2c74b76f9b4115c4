"""A draft vocabulary smaller than the target's: its map in a checkpoint, and cutting a drafter down to one.

The head reads Vd rows instead of V, which is most of what a draft costs. Output stays the target's: p^d is zero outside
the draft vocabulary, so those tokens come from the residual of the acceptance rule (dspark-spec, section 6).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from dspark.errors import ConfigurationError
from torch import Tensor

from dspark_build.models.drafter import Drafter
from dspark_build.models.drafter_config import DrafterConfig
from dspark_build.models.layers import RotaryEmbedding
from dspark_build.models.weights import load_weights

D2T, T2D = "d2t", "t2d"
REDUCED_TENSORS = ("lm_head.weight", "markov_head.markov_w2.weight")


def check_draft_ids(ids: Tensor, vocabulary_size: int, source: str) -> None:
    """Raise ConfigurationError unless target ids [Vd] are distinct, rising and inside V."""
    if not len(ids) or ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ConfigurationError(f"{source} must select tokens of the target's vocabulary, 0 to {vocabulary_size - 1}")
    if not bool((ids[1:] > ids[:-1]).all()):
        raise ConfigurationError(f"{source} must select distinct target ids in rising order")


def take_vocabulary_map(tensors: dict[str, Tensor], config: DrafterConfig, source: str) -> Tensor | None:
    """Take d2t and t2d out of a checkpoint's tensors; d2t [Vd] int64 where the vocabulary is reduced, else None.

    d2t gives target id = draft id + d2t[draft id]; t2d [V], true for tokens that can be drafted, says nothing new and
    must agree. Raises ConfigurationError naming the tensor that is missing or does not fit.
    """
    size, vocabulary = config.draft_vocabulary_size, config.model.vocabulary_size
    d2t, t2d = tensors.pop(D2T, None), tensors.pop(T2D, None)
    if d2t is None:
        if config.reduced_vocabulary is not None:
            raise ConfigurationError(f"{source}: draft_vocab_size {size} needs tensor {D2T}, which is missing")
        d2t = torch.zeros(size, dtype=torch.int64)
    if list(d2t.shape) != [size] or d2t.dtype != torch.int64:
        raise ConfigurationError(
            f"{source}: tensor {D2T} is {d2t.dtype} {list(d2t.shape)}, expected torch.int64 [{size}], "
            "one entry for each draft token (draft_vocab_size)"
        )
    ids = torch.arange(size) + d2t
    check_draft_ids(ids, vocabulary, f"{source}: tensor {D2T}")
    if t2d is not None:
        if list(t2d.shape) != [vocabulary]:
            raise ConfigurationError(f"{source}: tensor {T2D} has shape {list(t2d.shape)}, expected [{vocabulary}]")
        if not torch.equal(t2d.bool().nonzero().flatten(), ids):
            raise ConfigurationError(f"{source}: tensor {T2D} marks other tokens than {D2T} selects")
    return d2t if config.reduced_vocabulary is not None else None


def reduce_vocabulary(drafter: Drafter, ids: npt.NDArray[np.int64]) -> Drafter:
    """A copy of `drafter` that drafts only the target ids `ids` [Vd], rising: the rows of its head and W2 are cut.

    Everything else is kept, so logits of the tokens that remain are unchanged. Raises ConfigurationError when ids are
    not rising, lie outside V, or cannot be drafted by `drafter` itself.
    """
    chosen = torch.from_numpy(np.asarray(ids, np.int64))
    check_draft_ids(chosen, drafter.config.model.vocabulary_size, "a draft vocabulary")
    before = drafter.draft_vocabulary().cpu()
    rows = torch.searchsorted(before, chosen).clamp(max=len(before) - 1)
    if not torch.equal(before[rows], chosen):
        raise ConfigurationError("a draft vocabulary can only lose tokens: the drafter lacks some of those chosen")
    if len(chosen) == drafter.config.model.vocabulary_size:
        size, d2t = None, None
    else:
        size, d2t = len(chosen), chosen - torch.arange(len(chosen))
    tensors: Mapping[str, Tensor] = {
        name: (parameter.detach().cpu()[rows] if name in REDUCED_TENSORS else parameter.detach().cpu().clone())
        for name, parameter in drafter.named_parameters()
    }
    trainable = {name for name, parameter in drafter.named_parameters() if parameter.requires_grad}
    config = dataclasses.replace(drafter.config, reduced_vocabulary=size)
    with torch.device("meta"):
        reduced = Drafter(config)
    load_weights(reduced, tensors, "the drafter")
    reduced.d2t = d2t
    reduced.rotary = RotaryEmbedding(config.model)
    for name, parameter in reduced.named_parameters():
        parameter.requires_grad_(name in trainable)
    return reduced.train(drafter.training)
