"""A loaded TensorRT-LLM engine: one TensorRT execution context, device buffers as large as any run, the KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dspark.engines.cuda_runtime import CudaStream
from dspark.engines.tensorrt_llm_checks import REBUILD, check_before_loading, check_tensors
from dspark.engines.tensorrt_llm_packing import Feed
from dspark.engines.tensorrt_llm_record import ENGINE_PLAN, TensorRtLlmDrafterRecord, TensorRtLlmTargetRecord
from dspark.engines.tensorrt_llm_tensors import EngineTensor
from dspark.errors import ConfigurationError, EngineError

Array = npt.NDArray[Any]


class Session(Protocol):
    """What the engines need of a loaded engine."""

    pool: int                        # address of the KV pool

    def run(self, feeds: Sequence[Feed]) -> list[Array]:
        """The outputs, in their order, of one run over all inputs. Raises EngineError when the runtime fails."""

    def close(self) -> None: ...


class TensorRtLlmSession:
    """An engine on the GPU. Raises ConfigurationError when it cannot be loaded or is not what engine.json says."""

    def __init__(self, folder: Path, record: TensorRtLlmTargetRecord | TensorRtLlmDrafterRecord) -> None:
        check_before_loading(folder, record.plan, record.shape, record.inputs, record.outputs)
        import tensorrt as trt
        import tensorrt_llm  # noqa: F401 - registers the plugins that the engine is made of

        self._record = record
        self._inputs = {tensor.name: tensor for tensor in record.inputs}
        self._logger = trt.Logger(trt.Logger.Severity.WARNING)
        self._runtime = trt.Runtime(self._logger)
        path = folder / ENGINE_PLAN
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise ConfigurationError(f"TensorRT {trt.__version__} cannot load {path}, its log says why; {REBUILD}")
        check_tensors(path, engine, (*record.inputs, *record.outputs))
        self._engine = engine
        context = engine.create_execution_context()
        if context is None:
            raise ConfigurationError(f"TensorRT cannot make an execution context of {path}: the GPU's memory is full")
        self._context = context
        self._stream = CudaStream()
        on_device = [tensor for tensor in (*record.inputs, *record.outputs) if not tensor.on_host]
        self._buffers = {t.name: self._stream.allocate(record.shape.most_bytes(t)) for t in on_device}
        self.pool = self._stream.allocate(record.shape.pool_bytes)

    def run(self, feeds: Sequence[Feed]) -> list[Array]:
        """The outputs of one run; host arrays live until it has ended. Raises EngineError."""
        if sorted(feed.name for feed in feeds) != sorted(self._inputs):
            raise EngineError("a run must be given every input of the engine once")
        arrays = {feed.name: np.ascontiguousarray(feed.array, self._inputs[feed.name].dtype) for feed in feeds}
        axes: dict[str, int] = {}
        for name, array in arrays.items():
            self._check_shape(self._inputs[name], array, axes)
            if not self._context.set_input_shape(name, array.shape):
                raise EngineError(f"TensorRT refuses the shape {array.shape} of {name}")
            if self._inputs[name].on_host:
                self._bind(name, array.ctypes.data)
            else:
                self._stream.upload(array, self._buffers[name])
                self._bind(name, self._buffers[name])
        outputs = []
        for tensor in self._record.outputs:
            self._bind(tensor.name, self._buffers[tensor.name])
            shape = [axis if isinstance(axis, int) else axes[axis] for axis in tensor.shape]
            outputs.append(np.empty(shape, tensor.dtype))
        if not self._context.execute_async_v3(self._stream.handle):
            raise EngineError("TensorRT could not run the engine; its log says why")
        for tensor, output in zip(self._record.outputs, outputs, strict=True):
            self._stream.download(self._buffers[tensor.name], output)
        self._stream.synchronize()
        return outputs

    def close(self) -> None:
        """Let go of engine and memory; the session cannot be used afterwards."""
        self._stream.close()
        del self._context, self._engine

    def _check_shape(self, tensor: EngineTensor, array: Array, axes: dict[str, int]) -> None:
        """Learn the axes; raise EngineError when tensors disagree or one is larger than its buffer."""
        sizes = zip(tensor.shape, array.shape, strict=False)
        wanted = [axes.setdefault(axis, size) if isinstance(axis, str) else axis for axis, size in sizes]
        if len(tensor.shape) != array.ndim or tuple(wanted) != array.shape:
            raise EngineError(f"{tensor.name} is {array.shape}, expected {tensor.shape} with {axes}")
        if any(size > self._record.shape.most(axis) for axis, size in axes.items()):
            raise EngineError(f"{tensor.name} is {array.shape}, more than the engine was built for")

    def _bind(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise EngineError(f"TensorRT refuses the address of {name}")
