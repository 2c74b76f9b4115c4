"""A GPU made of host memory: `tensorrt` and `cuda.bindings.runtime` as the engines use them, plans run by ONNX Runtime.

A plan file is JSON that names an ONNX file and the profiles' ranges. Every copy and every tensor must lie within one
allocation, every shape within its profile; calls are recorded.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnxruntime
import pytest

TYPES = {
    "tensor(int64)": ("INT64", np.int64),
    "tensor(int32)": ("INT32", np.int32),
    "tensor(bool)": ("BOOL", np.bool_),
    "tensor(float)": ("FLOAT", np.float32),
    "tensor(float16)": ("HALF", np.float16),
}


def write_plan(path: Path, onnx: Path, profiles) -> None:
    ranges = [{axis: [r.least, r.most] for axis, r in profile.items()} for profile in profiles]
    path.write_text(json.dumps({"onnx": str(onnx), "profiles": ranges}))


@dataclass
class FakeGpu:
    """What the fake modules share: memory, the record of calls, and what they pretend to be."""

    version: str = "11.4.0.106"
    capability: tuple[int, int] = (8, 9)
    free_bytes: int = 1 << 33
    devices: int = 1
    fails: set[str] = field(default_factory=set)       # CUDA calls that fail
    calls: list[str] = field(default_factory=list)
    memory: dict[int, np.ndarray] = field(default_factory=dict)
    captured: list | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
        tensorrt, runtime = ModuleType("tensorrt"), ModuleType("cuda.bindings.runtime")
        vars(tensorrt).update(_tensorrt(self))
        vars(runtime).update(_cuda(self))
        bindings, cuda = ModuleType("cuda.bindings"), ModuleType("cuda")
        bindings.runtime, cuda.bindings = runtime, bindings
        modules = {"tensorrt": tensorrt, "cuda": cuda, "cuda.bindings": bindings, "cuda.bindings.runtime": runtime}
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return self

    def within(self, address: int, count: int) -> int:
        """The address, if `count` bytes from there on were allocated together."""
        assert any(start <= address and address + count <= start + m.nbytes for start, m in self.memory.items())
        return address

    def do(self, work) -> None:
        """Run on the stream, or record while a graph is captured."""
        work() if self.captured is None else self.captured.append(work)


def _cuda(gpu: FakeGpu):
    class cudaError_t:
        cudaSuccess, cudaErrorMemoryAllocation = SimpleNamespace(name="ok"), SimpleNamespace(name="cudaErrorX")

    def call(function):
        def called(*arguments):
            gpu.calls.append(function.__name__)
            if function.__name__ in gpu.fails:
                return (cudaError_t.cudaErrorMemoryAllocation, None)
            value = function(*arguments)
            return (cudaError_t.cudaSuccess, *(value if isinstance(value, list) else [] if value is None else [value]))

        return called

    def cudaGetDeviceCount(): return gpu.devices
    def cudaGetDeviceProperties(device):
        return SimpleNamespace(name=b"a fake", major=gpu.capability[0], minor=gpu.capability[1])
    def cudaMemGetInfo(): return [gpu.free_bytes, 1 << 34]
    def cudaStreamCreate(): return 7
    def cudaStreamSynchronize(stream): assert gpu.captured is None
    def cudaStreamDestroy(stream): pass
    def cudaMalloc(size):
        array = np.empty(size, np.uint8)
        gpu.memory[array.ctypes.data] = array
        return array.ctypes.data
    def cudaFree(devPtr): del gpu.memory[devPtr]
    def cudaMemsetAsync(devPtr, value, count, stream): ctypes.memset(gpu.within(devPtr, count), value, count)
    def cudaMemcpyAsync(dst, src, count, kind, stream):
        if kind != "cudaMemcpyDeviceToHost":
            gpu.within(dst, count)
        if kind != "cudaMemcpyHostToDevice":
            gpu.within(src, count)
        ctypes.memmove(dst, src, count)
    def cudaStreamBeginCapture(stream, mode): gpu.captured = []
    def cudaStreamEndCapture(stream):
        graph, gpu.captured = gpu.captured, None
        return SimpleNamespace(graph=graph)
    def cudaGraphInstantiate(graph, flags): return SimpleNamespace(graph=graph.graph)
    def cudaGraphLaunch(graphExec, stream):
        for work in graphExec.graph:
            work()
    def cudaGraphDestroy(graph): pass
    def cudaGraphExecDestroy(graphExec): pass

    functions = {name: call(function) for name, function in locals().copy().items() if name.startswith("cuda")
                 and name != "cudaError_t"}
    kinds = ("cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice")
    return functions | {
        "cudaError_t": cudaError_t,
        "cudaMemcpyKind": SimpleNamespace(**{kind: kind for kind in kinds}),
        "cudaStreamCaptureMode": SimpleNamespace(cudaStreamCaptureModeThreadLocal=1),
    }


def _tensorrt(gpu: FakeGpu):
    class Logger:
        Severity = SimpleNamespace(ERROR=1, WARNING=2)

        def __init__(self, min_severity): ...

    class Context:
        def __init__(self, engine):
            self.engine, self.shapes, self.addresses, self.ranges = engine, {}, {}, None

        def set_optimization_profile_async(self, profile_index, stream_handle):
            self.ranges = self.engine.profiles[profile_index]
            return True

        def set_input_shape(self, name, shape):
            axes = self.engine.axes(name)
            inside = all(
                size == axis if isinstance(axis, int) else self.ranges[axis][0] <= size <= self.ranges[axis][1]
                for size, axis in zip(shape, axes, strict=True)
            )
            self.shapes[name] = shape
            return inside

        def set_tensor_address(self, name, memory):
            self.addresses[name] = memory
            return True

        def execute_async_v3(self, stream_handle):
            gpu.calls.append("execute_async_v3")
            shapes, addresses = dict(self.shapes), dict(self.addresses)
            gpu.do(lambda: self._run(shapes, addresses))
            return True

        def _run(self, shapes, addresses):
            feed = {}
            for value in self.engine.session.get_inputs():
                shape, dtype = shapes[value.name], TYPES[value.type][1]
                count = int(np.prod(shape)) * np.dtype(dtype).itemsize
                raw = ctypes.string_at(gpu.within(addresses[value.name], count), count)
                feed[value.name] = np.frombuffer(raw, dtype).reshape(shape)
            outputs = self.engine.session.run(None, feed)
            for value, output in zip(self.engine.session.get_outputs(), outputs, strict=True):
                address = gpu.within(addresses[value.name], output.nbytes)
                ctypes.memmove(address, np.ascontiguousarray(output).ctypes.data, output.nbytes)

    class Engine:
        def __init__(self, plan):
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            self.session = onnxruntime.InferenceSession(plan["onnx"], options)
            self.profiles = plan["profiles"]
            self.values = {v.name: v for v in (*self.session.get_inputs(), *self.session.get_outputs())}

        num_optimization_profiles = property(lambda self: len(self.profiles))
        num_io_tensors = property(lambda self: len(self.values))

        def get_tensor_name(self, index): return list(self.values)[index]
        def get_tensor_dtype(self, name): return TYPES[self.values[name].type][0]
        def get_tensor_shape(self, name):
            return tuple(axis if isinstance(axis, int) else -1 for axis in self.values[name].shape)

        def axes(self, name):
            letters = {
                "tokens": "RL", "positions": "RL", "logit_rows": "RN", "mask": "R?L", "write_at": "R", "features": "A",
            }
            shape, given = self.values[name].shape, letters.get(name, "R")
            if name == "positions" and len(shape) == 1:
                given = "A" if "features" in self.values else "R"
            return [axis if isinstance(axis, int) else given[place] for place, axis in enumerate(shape)]

        def get_aliased_input_tensor(self, name):
            return name.replace("new_", "past_") if name.startswith("new_") else None

        def create_execution_context(self): return Context(self)

    class Runtime:
        def __init__(self, logger): ...
        def deserialize_cuda_engine(self, serialized_engine):
            return Engine(json.loads(serialized_engine)) if serialized_engine.startswith(b"{") else None

    kinds = {kind: kind for kind in ("FLOAT", "HALF", "BF16", "INT32", "INT64", "BOOL")}
    return {"__version__": gpu.version, "Logger": Logger, "Runtime": Runtime, "DataType": SimpleNamespace(**kinds)}
