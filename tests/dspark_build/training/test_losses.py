"""The three losses and their gradients against a float64 NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dspark_build.training.losses import block_losses, position_weights

M, S, V = 5, 7, 12                   # positions, tokens of the vocabulary part, vocabulary


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


@pytest.fixture
def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {
        "draft": random.normal(size=(M, V)),
        "teacher": 2 * random.normal(size=(M, V)),
        "confidence": random.normal(size=M),
        "labels": random.integers(0, V, M),
        "weights": np.exp(-np.arange(M) / 4),
    }


def reference(draft: np.ndarray, confidence: np.ndarray, soft: np.ndarray | None, inputs: dict) -> np.ndarray:
    """L_ce, L_tv, L_conf over the whole vocabulary as the specification writes them."""
    p_draft, p_target = softmax(draft), softmax(inputs["teacher"])
    weights = inputs["weights"]
    distance = np.abs(p_draft - p_target).sum(-1)
    label = 1 - distance / 2 if soft is None else soft
    chance = 1 / (1 + np.exp(-confidence))
    bce = -(label * np.log(chance) + (1 - label) * np.log(1 - chance))
    ce = -np.log(p_draft[np.arange(M), inputs["labels"]])
    return np.array([(weights * each).sum() / weights.sum() for each in (ce, distance, bce)])


def ours(inputs: dict, draft: torch.Tensor, confidence: torch.Tensor) -> tuple[torch.Tensor, ...]:
    teacher = torch.from_numpy(inputs["teacher"])
    return block_losses(
        draft,
        teacher,
        teacher.logsumexp(-1),
        torch.zeros(V, dtype=torch.float64),
        torch.from_numpy(inputs["labels"]),
        confidence,
        torch.from_numpy(inputs["weights"]),
    )


def test_the_losses_are_those_of_the_specification(inputs):
    losses = ours(inputs, torch.from_numpy(inputs["draft"]), torch.from_numpy(inputs["confidence"]))
    expected = reference(inputs["draft"], inputs["confidence"], None, inputs)
    np.testing.assert_allclose([float(x) for x in losses], expected)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["cross-entropy", "total variation", "confidence"])
def test_gradients_agree_with_finite_differences_of_the_reference(inputs, which):
    draft = torch.from_numpy(inputs["draft"]).requires_grad_()
    confidence = torch.from_numpy(inputs["confidence"]).requires_grad_()
    loss = ours(inputs, draft, confidence)[which]
    gradients = torch.autograd.grad(loss, (draft, confidence), allow_unused=True)
    # The soft label is data: it passes no gradient to the draft.
    soft = 1 - np.abs(softmax(inputs["draft"]) - softmax(inputs["teacher"])).sum(-1) / 2
    step = 1e-6
    for name, gradient in zip(("draft", "confidence"), gradients, strict=True):
        expected = np.zeros_like(inputs[name])
        for index in np.ndindex(expected.shape):
            values = []
            for sign in (1, -1):
                moved = {"draft": inputs["draft"].copy(), "confidence": inputs["confidence"].copy()}
                moved[name][index] += sign * step
                values.append(reference(moved["draft"], moved["confidence"], soft, inputs)[which])
            expected[index] = (values[0] - values[1]) / (2 * step)
        found = np.zeros_like(expected) if gradient is None else gradient.numpy()
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_a_weighted_part_estimates_the_overlap_of_the_whole_vocabulary_without_bias_in_p_target(inputs):
    random = np.random.default_rng(0)
    draft = torch.from_numpy(inputs["draft"])
    whole = ours(inputs, draft, torch.from_numpy(inputs["confidence"]))
    own, others = np.arange(0, 4), np.arange(4, V)
    log_weights = torch.tensor([0.0] * 4 + [np.log(len(others) / 4)] * 4, dtype=torch.float64)
    estimates = []
    for _ in range(400):
        ids = torch.from_numpy(np.concatenate([own, random.choice(others, 4, replace=False)]))
        teacher = torch.from_numpy(inputs["teacher"])
        estimates.append(
            float(
                block_losses(
                    draft[:, ids],
                    teacher[:, ids],
                    teacher.logsumexp(-1),
                    log_weights,
                    torch.full((M,), -1),
                    None,
                    torch.from_numpy(inputs["weights"]),
                ).total_variation
            )
        )
    # Only the estimate of p^d's denominator leaves a small bias.
    assert abs(np.mean(estimates) - float(whole[1])) < 0.1


def test_a_label_outside_the_part_has_no_cross_entropy(inputs):
    ids = torch.arange(S)
    teacher = torch.from_numpy(inputs["teacher"])
    draft = torch.from_numpy(inputs["draft"])[:, ids]
    weights = torch.from_numpy(inputs["weights"])
    places = torch.tensor([0, -1, 2, -1, 4])
    with_holes = block_losses(
        draft, teacher[:, ids], teacher.logsumexp(-1), torch.zeros(S).double(), places, None, weights
    ).cross_entropy
    log_probs = torch.log_softmax(draft, -1)
    expected = -sum(float(weights[i] * log_probs[i, places[i]]) for i in (0, 2, 4)) / float(weights.sum())
    assert float(with_holes) == pytest.approx(expected)


def test_published_position_weights():
    np.testing.assert_allclose(position_weights(7, 4.0), np.exp(-np.arange(7) / 4), rtol=1e-6)
