"""Blocks: which positions may see which, and which labels and teacher rows they get."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dspark_build.training.blocks import block_mask, make_batch, sample_anchors, whole_block_anchors
from synthetic import counting_sequence as sequence

GAMMA = 3


@pytest.mark.parametrize("window", [3, 100])
def test_a_block_sees_its_past_within_the_window_and_itself_position_by_position(window):
    anchors = [[2, 5, 9], [4, 4, 8]]
    context_rows = 9
    mask = block_mask(torch.tensor(anchors), GAMMA, context_rows, window)
    assert mask.shape == (2, 9, context_rows + 9)
    for n in range(2):
        for query in range(9):
            block = query // GAMMA
            anchor = anchors[n][block]
            for row in range(context_rows):
                assert bool(mask[n, query, row]) == (anchor - window <= row < anchor), (n, query, row)
            for other in range(9):
                assert bool(mask[n, query, context_rows + other]) == (other // GAMMA == block), (n, query, other)


def test_labels_follow_the_anchor_and_end_with_the_response():
    batch = make_batch([sequence(10, 4)], [np.array([5, 7])], GAMMA, 100)
    assert batch.anchors.tolist() == [[105, 107]]
    assert batch.labels[0, 0].tolist() == [106, 107, 108]
    assert batch.previous[0, 0].tolist() == [105, 106, 107]
    assert batch.valid[0].tolist() == [[True, True, True], [True, True, False]]
    assert batch.labels[0, 1, :2].tolist() == [108, 109]


def test_the_teacher_row_of_a_label_is_the_state_of_the_token_before_it():
    batch = make_batch([sequence(10, 4), sequence(12, 3, 200)], [np.array([5, 7]), np.array([4])], GAMMA, 100)
    predicted_from = batch.teacher_hidden[batch.teacher_rows][..., 0]
    assert predicted_from[batch.valid].tolist() == [5, 6, 7, 7, 8, 4, 5, 6]
    assert batch.teacher_log_z[batch.teacher_rows][batch.valid].tolist() == [5, 6, 7, 7, 8, 4, 5, 6]


def test_the_context_has_its_tokens_and_the_one_after_it():
    batch = make_batch([sequence(20, 4), sequence(8, 3, 200)], [np.array([5, 15]), np.array([4])], GAMMA, 100)
    assert batch.context_tokens.shape == (2, 16)
    assert batch.context_tokens[0].tolist() == list(range(100, 116))
    assert batch.context_tokens[1, :8].tolist() == list(range(200, 208))


def test_padding_adds_no_valid_position_and_no_context():
    batch = make_batch([sequence(20, 4), sequence(8, 3)], [np.array([5, 15]), np.array([4])], GAMMA, 100)
    assert batch.taps.shape == (2, 15, 4)
    assert batch.valid[1, 1].tolist() == [False] * 3
    assert not batch.mask[1, :, 4:15].any()        # nothing at or beyond the anchor of the short sequence


def test_anchors_lie_in_the_response_and_have_a_successor():
    random = np.random.default_rng(0)
    anchors = sample_anchors(sequence(10, 4), 100, random)
    assert anchors.tolist() == [4, 5, 6, 7, 8]
    few = sample_anchors(sequence(10, 4), 3, random)
    assert len(set(few.tolist())) == 3 and set(few.tolist()) <= set(anchors.tolist())


def test_validation_takes_whole_blocks_alone():
    assert whole_block_anchors(sequence(10, 4), 100, GAMMA).tolist() == [4, 5, 6]
    assert whole_block_anchors(sequence(7, 4), 100, GAMMA).tolist() == []
