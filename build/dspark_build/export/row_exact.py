"""The same drafter, arranged so that OpenVINO's CPU kernels round a row alike whatever shares its matrix product.

Two kernels do not: the one for a single row (the sequential head of a lone request), and the one with an activation
fused into it, which sums in other pieces from about 80 rows on. What remains is found by `drafter_probe`.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark_build.models.drafter import Drafter
from dspark_build.models.layers import MLP


class PaddedLinear(nn.Module):
    """A linear map of x [R, n] whose kernel always sees at least two rows: one is repeated, its result dropped."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.cat([x, x[:1]]))[:-1]


class JoinedMLP(nn.Module):
    """SwiGLU with one product for gate and up, so that the activation cannot be fused into it."""

    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        self.weight = torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])
        self.down_proj = mlp.down_proj

    def forward(self, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, self.weight).chunk(2, -1)
        return self.down_proj(functional.silu(gate) * up)


def row_exact(drafter: Drafter) -> Drafter:
    """A copy with those two arrangements; it shares the weights and computes the same."""
    arranged = _copy(drafter)
    for name in ("markov_head", "confidence_head"):
        if hasattr(drafter, name):
            head = _copy(getattr(drafter, name))
            for child, module in head.named_children():
                if isinstance(module, nn.Linear):
                    setattr(head, child, PaddedLinear(module))
            setattr(arranged, name, head)
    arranged.layers = nn.ModuleList(_copy(layer) for layer in drafter.layers)
    for layer in arranged.layers:
        layer.mlp = JoinedMLP(layer.mlp)
    return arranged


def _copy(module: nn.Module) -> nn.Module:
    """A module whose children can be replaced without touching the original's."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
