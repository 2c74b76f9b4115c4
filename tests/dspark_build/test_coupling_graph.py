"""The noise inside a graph is the library's, bit for bit; choices differ only where fp32 cannot tell tokens apart."""

from __future__ import annotations

import numpy as np
import openvino as ov
import torch
from dspark.verification import coupled_choice, draft_distribution
from dspark.verification.coupling import noise_hashes as library_hashes
from dspark_build.models.coupling import coupled_places, noise_hashes
from torch import nn

RANDOM = np.random.default_rng(0)
ROWS, K = 200, 64
KEYS = np.array([0, -1, 2**31 - 1, -(2**31), *RANDOM.integers(-(2**31), 2**31, ROWS - 4)], np.int32)
TOKENS = np.stack([RANDOM.permutation(262_144)[:K] for _ in range(ROWS)]).astype(np.int32)
TOKENS[0, :2] = 0, 262_143


class Hashes(nn.Module):
    def forward(self, keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return noise_hashes(keys, tokens)


class Choices(nn.Module):
    def forward(self, keys: torch.Tensor, tokens: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        return torch.gather(tokens, 1, coupled_places(probabilities, tokens, keys))


def compiled(graph: nn.Module, *inputs: np.ndarray) -> np.ndarray:
    tensors = tuple(map(torch.from_numpy, inputs))
    with torch.no_grad():
        model = ov.convert_model(torch.jit.trace(graph.eval(), tensors))
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)[0]


def expected_hashes() -> np.ndarray:
    return np.stack([library_hashes(int(key), tokens) for key, tokens in zip(KEYS, TOKENS, strict=True)])


def test_torch_hashes_as_numpy_does() -> None:
    found = noise_hashes(torch.from_numpy(KEYS), torch.from_numpy(TOKENS)).numpy()
    np.testing.assert_array_equal(found.view(np.uint32), expected_hashes())


def test_the_openvino_graph_hashes_as_numpy_does() -> None:
    found = compiled(Hashes(), KEYS, TOKENS)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found.view(np.uint32), expected_hashes())


def test_the_graph_chooses_what_the_library_chooses() -> None:
    probabilities = RANDOM.dirichlet(np.full(K, 0.3), ROWS).astype(np.float32)
    probabilities[1] = 0
    probabilities[1, 5] = 1                          # greedy
    probabilities[2, :60] = 0
    found = compiled(Choices(), KEYS, TOKENS, probabilities)[:, 0]
    expected = [
        coupled_choice(draft_distribution(tokens, probs), int(key))
        for key, tokens, probs in zip(KEYS, TOKENS, probabilities, strict=True)
    ]
    np.testing.assert_array_equal(found, expected)   # of 200 choices none is as close as that
