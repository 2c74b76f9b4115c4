"""A loaded TensorRT plan: one execution context for each optimisation profile, tensors bound by address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.engines.cuda_runtime import CudaStream
from dspark.engines.tensorrt_checks import REBUILD, check_engine
from dspark.engines.tensorrt_contract import GraphContract
from dspark.errors import ConfigurationError, EngineError

if TYPE_CHECKING:
    import tensorrt as trt


@dataclass(frozen=True)
class Bound:
    """Where a tensor lies and how large it is in a run; TensorRT finds out itself how large an output is."""

    address: int
    shape: tuple[int, ...] = ()


Bindings = Mapping[str, Bound]


class LoadedPlan:
    """A plan file on the GPU. Raises ConfigurationError when it cannot be loaded or is not what the contract says."""

    def __init__(self, path: Path, contract: GraphContract, profiles: int, stream: CudaStream) -> None:
        import tensorrt as trt

        self._stream = stream
        self._inputs = {tensor.name for tensor in contract.inputs}
        self._logger = trt.Logger(trt.Logger.Severity.WARNING)
        self._runtime = trt.Runtime(self._logger)
        try:
            engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read ({error}); {REBUILD}") from error
        if engine is None:
            raise ConfigurationError(f"TensorRT {trt.__version__} cannot load {path}, its log says why; {REBUILD}")
        check_engine(path, engine, contract, profiles)
        self._engine = engine
        self._contexts = [self._context(path, profile) for profile in range(profiles)]
        self._bound: list[dict[str, Bound]] = [{} for _ in range(profiles)]

    def enqueue(self, profile: int, bindings: Bindings) -> None:
        """Put one run on the stream; every input and output must be bound. Raises EngineError when TensorRT refuses."""
        self._bind(profile, bindings)
        if not self._contexts[profile].execute_async_v3(stream_handle=self._stream.handle):
            raise EngineError("TensorRT could not run the plan; its log says why")

    def capture(self, profile: int, bindings: Bindings) -> Callable[[], None]:
        """A CUDA graph of such a run, for these shapes and addresses; what is returned launches it.

        The run is done once before, because the first of a shape may allocate.
        """
        self.enqueue(profile, bindings)
        self._stream.synchronize()
        return self._stream.capture(lambda: self.enqueue(profile, bindings))

    def _context(self, path: Path, profile: int) -> trt.IExecutionContext:
        context = self._engine.create_execution_context()
        if context is None:
            raise ConfigurationError(f"TensorRT cannot make an execution context of {path}: the GPU's memory is full")
        if not context.set_optimization_profile_async(profile_index=profile, stream_handle=self._stream.handle):
            raise ConfigurationError(f"{path} refuses its optimisation profile {profile}; {REBUILD}")
        self._stream.synchronize()
        return context

    def _bind(self, profile: int, bindings: Bindings) -> None:
        """Tell the context what differs from its last run."""
        context, known = self._contexts[profile], self._bound[profile]
        for name, bound in bindings.items():
            if known.get(name) == bound:
                continue
            known.pop(name, None)
            if name in self._inputs and not context.set_input_shape(name=name, shape=bound.shape):
                raise EngineError(f"TensorRT refuses the shape {bound.shape} of {name}: outside profile {profile}")
            if not context.set_tensor_address(name=name, memory=bound.address):
                raise EngineError(f"TensorRT refuses the address of {name}")
            known[name] = bound
