"""A weight of a module: settable while the network is described, a tensor of the network once it is read."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from tensorrt_llm.functional import Tensor

class Parameter:
    def __init__(
        self,
        value: npt.NDArray[Any] | torch.Tensor | None = None,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> None: ...
    @property
    def value(self) -> Tensor: ...
    @value.setter
    def value(self, v: npt.NDArray[Any] | torch.Tensor) -> None: ...
