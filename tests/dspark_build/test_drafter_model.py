"""The torch drafter against the specification's formulas, written out once more without its code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dspark_build.drafters import reduce_vocabulary
from dspark_build.models.block_sampling import candidate_probabilities, draw, most_likely
from dspark_build.models.config import ModelConfig
from dspark_build.models.drafter import Drafter
from dspark_build.models.drafter_config import DrafterConfig
from torch import Tensor

GAMMA, RANK, VOCABULARY, HIDDEN = 4, 6, 50, 24
HEADS = ("none", "vanilla", "gated", "rnn")


def make_drafter(head: str = "vanilla", flavour: str = "qwen3", with_markov: bool = True) -> Drafter:
    torch.manual_seed(5)
    model = ModelConfig(
        flavour=flavour,
        vocabulary_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_size=8,
        max_positions=128,
        rope_theta=1e4,
        norm_epsilon=1e-6,
        tied_head=False,
    )
    rank = 0 if head == "none" else RANK
    config = DrafterConfig(model, 6, (0, 3), GAMMA, 49, head, rank, True, with_markov and rank > 0)
    drafter = Drafter(config).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return drafter.requires_grad_(False)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def turned(head: Tensor, position: int) -> Tensor:
    """RoPE of one head vector [8] at a position."""
    out = head.clone()
    for i in range(4):
        angle = position * 1e4 ** (-i / 4)
        a, b = head[i], head[i + 4]
        out[i], out[i + 4] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return out


def hidden_by_the_book(drafter: Drafter, anchor: int, position: int, taps: Tensor) -> Tensor:
    """h_1..h_gamma of one block, head by head and row by row."""
    weights = drafter.state_dict()
    qwen = drafter.config.model.qk_norm
    context = rms(taps @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    x = weights["embed_tokens.weight"][[anchor, 49, 49, 49]]
    for layer in range(2):
        w = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        block = rms(x, w["input_layernorm.weight"])
        rows, places = torch.cat([context, block]), [*range(len(context)), *range(position, position + GAMMA)]
        attended = torch.zeros(GAMMA, 4, 8)
        for h in range(4):
            group = slice(8 * (h // 2), 8 * (h // 2) + 8)
            keys, values = rows @ w["self_attn.k_proj.weight"][group].T, rows @ w["self_attn.v_proj.weight"][group].T
            queries = block @ w["self_attn.q_proj.weight"][8 * h : 8 * h + 8].T
            if qwen:
                keys = rms(keys, w["self_attn.k_norm.weight"])
                queries = rms(queries, w["self_attn.q_norm.weight"])
            keys = torch.stack([turned(key, place) for key, place in zip(keys, places, strict=True)])
            for k in range(GAMMA):
                scores = keys @ turned(queries[k], position + k) / 8**0.5
                attended[k, h] = torch.softmax(scores, 0) @ values
        x = x + attended.flatten(1) @ w["self_attn.o_proj.weight"].T
        y = rms(x, w["post_attention_layernorm.weight"])
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w["mlp.down_proj.weight"].T
    return rms(x, weights["norm.weight"])


def bias_by_the_book(drafter: Drafter, hidden: Tensor, previous: list[int]) -> Tensor:
    weights, state, rows = drafter.state_dict(), torch.zeros(RANK), []
    for h, token in zip(hidden, previous, strict=True):
        if drafter.config.markov_head_type == "none":
            rows.append(torch.zeros(VOCABULARY))
            continue
        embedded, w2 = weights["markov_head.markov_w1.weight"][token], weights["markov_head.markov_w2.weight"]
        latent = embedded
        if drafter.config.markov_head_type == "gated":
            gate = weights["markov_head.gate_proj.weight"] @ torch.cat([h, embedded])
            latent = torch.sigmoid(gate + weights["markov_head.gate_proj.bias"]) * embedded
        if drafter.config.markov_head_type == "rnn":
            z = weights["markov_head.joint_proj.weight"] @ torch.cat([state, embedded, h])
            gate, candidate, output = (z + weights["markov_head.joint_proj.bias"]).split(RANK)
            state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
            latent = torch.tanh(output)
        rows.append(w2 @ latent)
    return torch.stack(rows)


@pytest.mark.parametrize("flavour", ["llama", "qwen3"])
@pytest.mark.parametrize("head", HEADS)
def test_backbone_heads_and_confidence_are_the_specified_formulas(head: str, flavour: str) -> None:
    drafter = make_drafter(head, flavour)
    taps, anchor, previous = torch.randn(9, 2 * HIDDEN), 11, [11, 3, 3, 40]
    mask = torch.ones(1, 1, 9 + GAMMA, dtype=torch.bool)
    hidden = drafter.backbone(
        drafter.block_embeddings(torch.tensor([anchor])),
        drafter.block_positions(torch.tensor([9])),
        drafter.context_features(taps)[None],
        mask,
    )[0]
    expected = hidden_by_the_book(drafter, anchor, 9, taps)
    torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=1e-4)
    logits = drafter.head_logits(hidden, torch.tensor(previous))
    base = expected @ drafter.lm_head.weight.T
    torch.testing.assert_close(logits, base + bias_by_the_book(drafter, expected, previous), atol=1e-3, rtol=1e-4)
    features = expected
    if head != "none":
        features = torch.cat([expected, drafter.markov_head.markov_w1.weight[previous]], -1)
    confidence = features @ drafter.confidence_head.proj.weight[0] + drafter.confidence_head.proj.bias
    torch.testing.assert_close(
        drafter.confidence_logits(hidden, torch.tensor(previous)), confidence, atol=1e-3, rtol=1e-4
    )


@pytest.mark.parametrize("head", HEADS)
def test_a_reduced_drafter_draws_what_the_whole_one_draws_when_only_some_tokens_are_allowed(head: str) -> None:
    whole, allowed = make_drafter(head), np.array([0, 3, 7, 20, 21, 33, 48])
    reduced = reduce_vocabulary(whole, allowed)
    assert reduced.draft_vocabulary().tolist() == allowed.tolist()
    context = whole.context_keys_values(torch.randn(2, 9, HIDDEN), torch.arange(9)[None])
    anchors, temperatures, uniforms = torch.tensor([11, 3]), torch.tensor([0.9, 0.0]), torch.rand(2, GAMMA)
    block = reduced.draft(
        anchors, torch.tensor([9, 9]), context, torch.ones(2, 9, dtype=torch.bool), temperatures, uniforms
    )
    mask = torch.ones(2, 1, 9 + GAMMA, dtype=torch.bool)
    embeds, positions = whole.block_embeddings(anchors), whole.block_positions(torch.tensor([9, 9]))
    hidden = whole._backbone_over(embeds, positions, context, mask)
    previous = torch.cat([anchors[:, None], block.tokens[:, :-1].long()], 1)
    logits = torch.stack([whole.head_logits(hidden[r], previous[r]) for r in range(2)])
    torch.testing.assert_close(reduced.head_logits(hidden, previous), logits[..., allowed], atol=1e-5, rtol=1e-5)
    forbidden = torch.ones(VOCABULARY, dtype=torch.bool)
    forbidden[allowed] = False
    logits[..., forbidden] = float("-inf")
    expected = torch.softmax(logits[0] / 0.9, -1)
    given = torch.zeros(GAMMA, VOCABULARY).scatter(-1, block.draft_ids[0].long(), block.draft_probs[0])
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
    assert block.tokens[1].tolist() == logits[1].argmax(-1).tolist()
    place = draw(block.draft_probs[0], uniforms[0])
    assert block.draft_ids[0].gather(-1, place).squeeze(-1).tolist() == block.tokens[0].tolist()


def test_confidence_without_the_markov_embedding_reads_h_alone() -> None:
    drafter = make_drafter(with_markov=False)
    hidden = torch.randn(GAMMA, HIDDEN)
    expected = hidden @ drafter.confidence_head.proj.weight[0] + drafter.confidence_head.proj.bias
    torch.testing.assert_close(drafter.confidence_logits(hidden, torch.zeros(GAMMA, dtype=torch.long)), expected)


def test_many_blocks_in_one_pass_equal_each_block_alone() -> None:
    drafter = make_drafter()
    features, anchors, positions = torch.randn(1, 20, HIDDEN), torch.tensor([4, 8, 15]), torch.tensor([1, 7, 20])
    blocks = len(anchors) * GAMMA
    mask = torch.zeros(1, blocks, 20 + blocks, dtype=torch.bool)
    for b, position in enumerate(positions):
        rows = slice(b * GAMMA, (b + 1) * GAMMA)
        mask[0, rows, :position] = True
        mask[0, rows, 20 + b * GAMMA : 20 + (b + 1) * GAMMA] = True
    together = drafter.backbone(
        drafter.block_embeddings(anchors).reshape(1, blocks, HIDDEN),
        drafter.block_positions(positions).reshape(1, blocks),
        features,
        mask,
    ).reshape(3, GAMMA, HIDDEN)
    for b, position in enumerate(positions):
        alone = drafter.backbone(
            drafter.block_embeddings(anchors[b : b + 1]),
            drafter.block_positions(positions[b : b + 1]),
            features[:, :position],
            torch.ones(1, 1, int(position) + GAMMA, dtype=torch.bool),
        )
        torch.testing.assert_close(together[b], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("vocabulary", [64, 100, 4096, 5000, 9001])
def test_the_two_stage_search_finds_the_true_most_likely(vocabulary: int) -> None:
    logits = torch.randn(5, vocabulary)
    logits[0, :70] += 20            # many of the largest in one group
    values, ids = most_likely(logits, vocabulary, 64)
    expected = torch.topk(logits, 64)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


def test_temperature_zero_puts_all_probability_on_the_first_candidate() -> None:
    values = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    probabilities = candidate_probabilities(values, torch.tensor([0.0, 0.5]))
    assert probabilities[0].tolist() == [1, 0, 0]
    torch.testing.assert_close(probabilities[1], torch.softmax(values[1] / 0.5, 0))


def test_a_draw_never_takes_a_candidate_of_probability_zero() -> None:
    short = torch.tensor([[0.6, 0.39999, 0.0, 0.0]])      # sums to less than 1, as rounding may leave it
    almost_one = torch.tensor([1 - 2**-24])
    assert draw(short, almost_one).item() == 1
    assert draw(short, torch.tensor([0.0])).item() == 0
    assert draw(short, torch.tensor([0.6])).item() == 1
