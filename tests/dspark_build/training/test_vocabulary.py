"""The part of the vocabulary that a step computes."""

from __future__ import annotations

import numpy as np
import torch
from dspark_build.drafters import initialise_drafter, reduce_vocabulary
from dspark_build.training.vocabulary import TrainingVocabulary, choose_vocabulary
from synthetic import VOCABULARY, counting_sequence, make_tiny_checkpoint


def test_the_most_frequent_tokens_are_chosen():
    sequences = [counting_sequence(10, 4, first_token=1), counting_sequence(6, 4, first_token=3)]
    assert choose_vocabulary(sequences, 20, 6, 0).frequent.tolist() == [3, 4, 5, 6, 7, 8]
    assert choose_vocabulary(sequences, 20, 0, 5).frequent.tolist() == list(range(20))


def test_a_sampled_part_holds_frequent_tokens_and_labels_once_and_weighs_the_others():
    vocabulary = TrainingVocabulary(100, np.arange(0, 20, 2), 30)
    part = vocabulary.part(torch.tensor([[2, 51], [99, 51]]), np.random.default_rng(0))
    ids = part.ids.tolist()
    assert ids == sorted(set(ids)) and {*range(0, 20, 2), 51, 99} <= set(ids)
    weights = part.log_weights.exp()
    own = torch.isin(part.ids, torch.tensor([*range(0, 20, 2), 51, 99]))
    assert weights[own].tolist() == [1.0] * 12
    assert len(ids) == 42
    assert abs(float(weights.sum()) - 100) < 1e-3


def test_rows_outside_a_fixed_part_get_the_mean_row(tmp_path):
    drafter = initialise_drafter(
        make_tiny_checkpoint(tmp_path), target_layer_ids=[0], start_layers=[1], markov_rank=4, mask_token_id=3
    )
    before = drafter.markov_head.markov_w2.weight.detach().clone()
    TrainingVocabulary(VOCABULARY, np.arange(10), 0).fill_untrained_rows(drafter)
    after = drafter.markov_head.markov_w2.weight
    assert torch.equal(after[:10], before[:10])
    torch.testing.assert_close(after[10:], before[:10].mean(0).expand(VOCABULARY - 10, -1))
    TrainingVocabulary(VOCABULARY, np.arange(10), 5).fill_untrained_rows(drafter)   # every row is trained there
    assert torch.equal(drafter.markov_head.markov_w2.weight, after)


def test_a_reduced_drafter_trains_and_fills_its_own_rows_alone(tmp_path):
    whole = initialise_drafter(
        make_tiny_checkpoint(tmp_path), target_layer_ids=[0], start_layers=[1], markov_rank=4, mask_token_id=3
    )
    drafter = reduce_vocabulary(whole, np.arange(5, 25))
    part, rows = TrainingVocabulary(VOCABULARY, np.arange(10), 30).part(
        torch.tensor([7, 40]), np.random.default_rng(0)
    ).drafted_by(drafter)
    assert part.ids.min() >= 5 and part.ids.max() < 25 and len(part.ids) == len(part.log_weights)
    assert torch.equal(rows, part.ids - 5)
    assert part.log_weights[part.ids < 10].tolist() == [0.0] * 5
    before = drafter.markov_head.markov_w2.weight.detach().clone()
    TrainingVocabulary(VOCABULARY, np.arange(10), 0).fill_untrained_rows(drafter)
    after = drafter.markov_head.markov_w2.weight
    assert torch.equal(after[:5], before[:5])
    torch.testing.assert_close(after[5:], before[:5].mean(0).expand(15, -1))
