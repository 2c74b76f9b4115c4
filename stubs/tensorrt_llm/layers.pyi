"""Layers with weights. Calls are typed here, although they go through Module.__call__, so that they are checked."""

from tensorrt_llm.functional import Tensor
from tensorrt_llm.module import Module
from tensorrt_llm.parameter import Parameter

class Linear(Module):
    weight: Parameter
    bias: Parameter | None
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: str | None = None,
        tp_group: list[int] | None = None,
        tp_size: int = 1,
        gather_output: bool = True,
    ) -> None: ...
    def __call__(self, x: Tensor) -> Tensor: ...

ColumnLinear = Linear

class RowLinear(Module):
    weight: Parameter
    bias: Parameter | None
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: str | None = None,
        tp_group: list[int] | None = None,
        tp_size: int = 1,
    ) -> None: ...
    def __call__(self, x: Tensor) -> Tensor: ...

class Embedding(Module):
    weight: Parameter
    def __init__(self, num_embeddings: int, embedding_dim: int, dtype: str | None = None) -> None: ...
    def __call__(self, x: Tensor) -> Tensor: ...

class RmsNorm(Module):
    weight: Parameter
    # 1.x has `num_groups` between these two: `eps` must be given by name.
    def __init__(self, normalized_shape: int, *, eps: float = 1e-06, dtype: str | None = None) -> None: ...
    def __call__(self, x: Tensor) -> Tensor: ...

class GatedMLP(Module):
    """proj(act(fc(x)) * gate(x))."""

    fc: Linear
    gate: Linear
    proj: RowLinear
    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, hidden_act: str, bias: bool = True, dtype: str | None = None
    ) -> None: ...
    def __call__(self, hidden_states: Tensor) -> Tensor: ...
