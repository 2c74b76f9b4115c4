"""The shape of a DSpark drafter (dspark-spec, section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.errors import ConfigurationError

from dspark_build.models.config import ModelConfig
from dspark_build.models.heads import HEADS


@dataclass(frozen=True)
class DrafterConfig:
    """Dimensions of one drafter. Raises ConfigurationError naming the published field that does not fit."""

    model: ModelConfig               # of the drafter's own layers; d and V are the target's
    target_layers: int
    target_layer_ids: tuple[int, ...]  # taps: i is the output of decoder layer i, -1 the embedding output
    block_size: int                  # gamma
    mask_token_id: int
    markov_head_type: str            # "none" | "vanilla" | "gated" | "rnn"
    markov_rank: int                 # r; 0 with head "none"
    confidence_head: bool
    confidence_with_markov: bool     # the confidence head also reads W1[x_{k-1}]
    anchors_per_sequence: int = 512  # what it was trained with; published as `num_anchors`
    # Vd where it drafts from a part of V. Not in the repr, by which a fit knows its checkpoints: older ones stay valid.
    reduced_vocabulary: int | None = field(default=None, repr=False)

    @property
    def draft_vocabulary_size(self) -> int:
        """Vd: how many tokens it can draft; V where the vocabulary is whole."""
        return self.reduced_vocabulary or self.model.vocabulary_size

    @property
    def tap_size(self) -> int:
        """m * d, the width of the concatenated taps."""
        return len(self.target_layer_ids) * self.model.hidden_size

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigurationError(f"block_size must be at least 1, not {self.block_size}")
        if not 0 <= self.mask_token_id < self.model.vocabulary_size:
            raise ConfigurationError(
                f"mask_token_id {self.mask_token_id} lies outside the vocabulary of {self.model.vocabulary_size} tokens"
            )
        if self.reduced_vocabulary is not None and not 0 < self.reduced_vocabulary < self.model.vocabulary_size:
            raise ConfigurationError(
                f"draft_vocab_size {self.reduced_vocabulary} must be above 0 and below the target's "
                f"{self.model.vocabulary_size} tokens"
            )
        self._check_taps()
        if self.markov_head_type not in ("none", *HEADS):
            raise ConfigurationError(
                f"markov_head_type {self.markov_head_type!r} is unknown; known: none, {', '.join(HEADS)}"
            )
        if (self.markov_head_type == "none") != (self.markov_rank == 0) or self.markov_rank < 0:
            raise ConfigurationError(
                f"markov_rank {self.markov_rank} does not fit markov_head_type {self.markov_head_type!r}: "
                "the rank is 0 exactly where there is no head"
            )
        if self.confidence_with_markov and not (self.confidence_head and self.markov_rank):
            raise ConfigurationError(
                "confidence_head_with_markov needs enable_confidence_head and a markov_rank above 0"
            )

    def _check_taps(self) -> None:
        taps = self.target_layer_ids
        if not taps or list(taps) != sorted(set(taps)):
            raise ConfigurationError(f"target_layer_ids must be distinct, rising and not empty, not {list(taps)}")
        if taps[0] < -1 or taps[-1] >= self.target_layers:
            raise ConfigurationError(
                f"target_layer_ids {list(taps)} must lie between -1 and {self.target_layers - 1}, "
                f"the last of the target's {self.target_layers} layers"
            )
