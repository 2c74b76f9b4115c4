"""Training and validating a drafter that drafts from a part of the vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.drafters import initialise_drafter, reduce_vocabulary
from dspark_build.training import FitConfig, fit_drafter
from dspark_build.training.blocks import whole_block_anchors
from dspark_build.training.data import TrainingSequence, load_data
from dspark_build.training.states import StateSource
from synthetic import HIDDEN, TAPS, VOCABULARY, make_training_data

GAMMA = 7
PART = np.arange(0, VOCABULARY, 2)   # half of a language in which one token follows another for certain


@pytest.mark.parametrize(("frequent", "sampled"), [(0, 0), (24, 12)], ids=["whole vocabulary", "sampled part"])
def test_a_reduced_drafter_learns_its_part_and_nothing_outside_counts_as_accepted(tmp_path, frequent, sampled):
    checkpoint, responses, states = make_training_data(tmp_path / "data")
    whole = initialise_drafter(
        checkpoint, target_layer_ids=TAPS, start_layers=[0], markov_head_type="vanilla", markov_rank=16, mask_token_id=3
    )
    drafter = reduce_vocabulary(whole, PART)
    config = FitConfig(
        checkpoint, responses, states, tmp_path / "run", steps=150, sequences_per_step=6, anchors_per_sequence=12,
        window=16, held_out=0.25, frequent_tokens=frequent, sampled_tokens=sampled, learning_rate=1e-2,
        warm_up_steps=10, validate_every=1000, checkpoint_every=1000,
    )  # fmt: skip
    validation = fit_drafter(config, drafter).validation
    source = StateSource(TAPS, HIDDEN, checkpoint_hash(checkpoint))
    held_out = load_data(responses, states, source, config.held_out).held_out
    for temperature, acceptance in ((0.0, validation.greedy), (1.0, validation.sampled)):
        chosen = [sequence for sequence in held_out if sequence.temperature == temperature]
        possible = np.mean([longest(sequence, config.validation_anchors) for sequence in chosen])
        assert 0.93 * possible < acceptance.tau <= possible + 1e-6
    assert torch.equal(drafter.draft_vocabulary(), torch.from_numpy(PART))


def longest(sequence: TrainingSequence, anchors: int) -> float:
    """Mean tokens a round when every true token of the part is drafted until the first that is not in it."""
    blocks = [sequence.tokens[a + 1 : a + 1 + GAMMA] for a in whole_block_anchors(sequence, anchors, GAMMA)]
    return float(np.mean([1 + np.cumprod(np.isin(block, PART)).sum() for block in blocks]))
