"""The EAGLE-3-style baseline: batched steps against one block at a time, its checkpoint, its training."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from dspark.errors import ConfigurationError
from dspark_build.drafters import initialise_eagle, load_any_drafter, load_eagle_checkpoint, save_any_drafter
from dspark_build.models.eagle import EagleDrafter
from dspark_build.tiny import make_tiny_target
from dspark_build.training.blocks import make_batch
from dspark_build.training.data import TrainingSequence

GAMMA, WINDOW, TAPS = 4, 6, (0, 1)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request, tmp_path_factory):
    return make_tiny_target(tmp_path_factory.mktemp(request.param), request.param, sharpness=1.0)


def random_drafter(target) -> EagleDrafter:
    """Every trained tensor away from its start, so that none of them can hide."""
    drafter = initialise_eagle(target, target_layer_ids=TAPS, block_size=GAMMA)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return drafter


def random_sequence(length: int, seed: int) -> TrainingSequence:
    random = np.random.default_rng(seed)
    return TrainingSequence(
        id="x", domain="chat", temperature=0.0, prompt_length=3,
        tokens=random.integers(3, 300, length).astype(np.int32),
        taps=random.standard_normal((length, 2, 64)).astype(np.float16),
        last=np.zeros((length, 64), np.float16), log_z=np.zeros(length, np.float32), tap_places=(0, 1),
    )  # fmt: skip


def one_block(drafter: EagleDrafter, sequence: TrainingSequence, anchor: int) -> torch.Tensor:
    """h [gamma, d] of one block, row by row: every row is computed from the whole list of rows before it."""
    tokens = torch.from_numpy(sequence.tokens).long()
    features = drafter.fc(torch.from_numpy(sequence.context(len(tokens))).float())
    attention, outputs = drafter.layer.self_attn, []
    rows = [drafter.input_rows(tokens[j + 1], features[j]) for j in range(anchor)]
    first = max(0, anchor - WINDOW)
    for k in range(GAMMA):
        if k:
            rows.append(drafter.input_rows(tokens[anchor + k], outputs[-1]))
        seen = torch.stack(rows[first:])
        positions = torch.arange(first, len(rows)) + 1
        normed, rotation = drafter.layer.input_layernorm(seen), drafter.rotary(positions)
        keys, values = attention.keys_values(normed, rotation)
        query = attention.queries(normed, rotation)[-1]
        shared = query.shape[0] // keys.shape[1]
        heads = []
        for h in range(query.shape[0]):
            scores = keys[:, h // shared] @ query[h] / query.shape[1] ** 0.5
            heads.append(scores.softmax(0) @ values[:, h // shared])
        x = seen[-1] + attention.o_proj(torch.cat(heads))
        outputs.append(x + drafter.layer.mlp(drafter.layer.post_attention_layernorm(x)))
    return drafter.norm(torch.stack(outputs))


@torch.no_grad()
def test_the_batched_steps_are_those_of_one_block_at_a_time(target):
    drafter = random_drafter(target)
    sequences = [random_sequence(24, 1), random_sequence(15, 2)]
    anchors = [np.array([3, 4, 9, 17]), np.array([3, 10])]
    hidden = drafter.block_hidden(make_batch(sequences, anchors, GAMMA, WINDOW))
    for n, (sequence, own) in enumerate(zip(sequences, anchors, strict=True)):
        for a, anchor in enumerate(own):
            torch.testing.assert_close(hidden[n, a], one_block(drafter, sequence, int(anchor)), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_position_depends_on_the_true_tokens_before_it_alone(target):
    drafter, sequence = random_drafter(target), random_sequence(24, 1)
    hidden = drafter.block_hidden(make_batch([sequence], [np.array([8])], GAMMA, WINDOW))[0, 0]
    changed = sequence.tokens.copy()
    changed[10] = 7                  # x_2 of the block anchored at 8
    other = TrainingSequence(**(vars(sequence) | {"tokens": changed}))
    moved = drafter.block_hidden(make_batch([other], [np.array([8])], GAMMA, WINDOW))[0, 0]
    assert torch.equal(hidden[:2], moved[:2])
    assert not torch.isclose(hidden[2:], moved[2:]).all(-1).any()


def test_the_checkpoint_comes_back_without_the_targets_matrices(target, tmp_path):
    drafter = random_drafter(target)
    save_any_drafter(drafter, tmp_path, target)
    loaded = load_any_drafter(tmp_path, target)
    assert isinstance(loaded, EagleDrafter) and loaded.config == drafter.config
    for (name, ours), theirs in zip(loaded.named_parameters(), drafter.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.requires_grad == theirs.requires_grad, name


@pytest.mark.parametrize(
    ("field", "value"),
    [("architectures", ["LlamaDSparkModel"]), ("num_target_layers", 9), ("target_layer_ids", [5]), ("block_size", 0)],
)
def test_a_field_that_does_not_fit_is_named(target, tmp_path, field, value):
    save_any_drafter(random_drafter(target), tmp_path, target)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {field: value}))
    with pytest.raises(ConfigurationError, match=field):
        load_eagle_checkpoint(tmp_path, target)
