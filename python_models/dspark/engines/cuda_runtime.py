"""Memory, copies and one stream of a CUDA device, over cuda-python's binding of the runtime API.

`cuda.bindings.runtime` is imported inside: an engine that needs no GPU must not need the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from dspark.errors import ConfigurationError, EngineError

if TYPE_CHECKING:
    from cuda.bindings import runtime

Array = npt.NDArray[Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Device:
    """The GPU that this process uses: the first that CUDA_VISIBLE_DEVICES leaves."""

    name: str
    compute_capability: str          # "8.9"
    free_bytes: int


def find_device() -> Device:
    """The device, without having touched its memory. Raises ConfigurationError when there is none to use."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise ConfigurationError(
            f"a TensorRT engine needs the Python package cuda-python, which cannot be imported ({error}); "
            "install it, or build another engine"
        ) from error
    failure, count = runtime.cudaGetDeviceCount()
    if failure != runtime.cudaError_t.cudaSuccess or not count:
        raise ConfigurationError(
            f"a TensorRT engine needs an NVIDIA GPU, and CUDA sees none ({failure.name}); check the driver with "
            "nvidia-smi and, in a container, that it was started with --gpus"
        )
    failure, properties = runtime.cudaGetDeviceProperties(0)
    _configured(failure, "read the GPU's properties")
    failure, free, _ = runtime.cudaMemGetInfo()
    _configured(failure, "read the GPU's free memory")
    return Device(properties.name.decode(), f"{properties.major}.{properties.minor}", free)


class CudaStream:
    """A stream and the device memory that was allocated through it, all of which `close` gives back.

    Copies are ordered on the stream; host arrays are ordinary memory, which CUDA has read when `upload` returns.
    Methods raise EngineError when CUDA does.
    """

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._stream: runtime.cudaStream_t = _value(runtime.cudaStreamCreate(), "create a stream")
        self._memory: list[int] = []
        self._graphs: list[runtime.cudaGraphExec_t] = []

    @property
    def handle(self) -> int:
        return int(self._stream)

    def allocate(self, count: int) -> int:
        """The address of `count` bytes of zeros."""
        from cuda.bindings import runtime

        address = _value(runtime.cudaMalloc(count), f"allocate {count / 2**20:.0f} MiB of GPU memory")
        self._memory.append(address)
        _checked(runtime.cudaMemsetAsync(address, 0, count, self._stream), "clear GPU memory")
        return address

    def upload(self, array: Array, address: int) -> None:
        """Copy a contiguous array to the device."""
        from cuda.bindings import runtime

        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        source = np.ascontiguousarray(array)
        _checked(runtime.cudaMemcpyAsync(address, source.ctypes.data, source.nbytes, kind, self._stream), "copy in")

    def download(self, address: int, into: Array) -> None:
        """Copy from the device into a contiguous array, which is filled after `synchronize`."""
        from cuda.bindings import runtime

        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        _checked(runtime.cudaMemcpyAsync(into.ctypes.data, address, into.nbytes, kind, self._stream), "copy out")

    def copy(self, source: int, destination: int, count: int) -> None:
        """Copy `count` bytes within the device."""
        from cuda.bindings import runtime

        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        _checked(runtime.cudaMemcpyAsync(destination, source, count, kind, self._stream), "copy on the GPU")

    def synchronize(self) -> None:
        from cuda.bindings import runtime

        _checked(runtime.cudaStreamSynchronize(self._stream), "finish the work on the GPU")

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record what `enqueue` puts on the stream as a CUDA graph; returns what launches it."""
        from cuda.bindings import runtime

        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        _checked(runtime.cudaStreamBeginCapture(self._stream, mode), "begin a CUDA graph")
        enqueue()
        graph = _value(runtime.cudaStreamEndCapture(self._stream), "end a CUDA graph")
        executable = _value(runtime.cudaGraphInstantiate(graph, 0), "instantiate a CUDA graph")
        _checked(runtime.cudaGraphDestroy(graph), "let go of a CUDA graph")
        self._graphs.append(executable)
        return lambda: _checked(runtime.cudaGraphLaunch(executable, self._stream), "launch a CUDA graph")

    def close(self) -> None:
        """Give everything back; the stream cannot be used afterwards."""
        from cuda.bindings import runtime

        self.synchronize()
        for executable in self._graphs:
            _checked(runtime.cudaGraphExecDestroy(executable), "destroy a CUDA graph")
        for address in self._memory:
            _checked(runtime.cudaFree(address), "free GPU memory")
        _checked(runtime.cudaStreamDestroy(self._stream), "destroy a stream")
        self._graphs, self._memory = [], []


def _checked(result: tuple[runtime.cudaError_t], action: str) -> None:
    _require(result[0], action)


def _value(result: tuple[runtime.cudaError_t, Value], action: str) -> Value:
    _require(result[0], action)
    return result[1]


def _require(error: runtime.cudaError_t, action: str) -> None:
    from cuda.bindings import runtime

    if error != runtime.cudaError_t.cudaSuccess:
        raise EngineError(f"CUDA could not {action}: {error.name}")


def _configured(error: runtime.cudaError_t, action: str) -> None:
    try:
        _require(error, action)
    except EngineError as failure:
        raise ConfigurationError(str(failure)) from failure
