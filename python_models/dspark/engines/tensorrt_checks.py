"""What must hold before a TensorRT engine may serve: package, GPU, version, memory, and the plan itself."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.engines.cuda_runtime import Device
from dspark.engines.tensorrt_contract import NEW, PAST, GraphContract
from dspark.engines.tensorrt_record import PlanFacts
from dspark.errors import ConfigurationError

if TYPE_CHECKING:
    import tensorrt as trt

OLDEST = (10, 15)                    # the first release whose bindings have the cache-update layer
NEWEST_MAJOR = 11                    # 11.4 is the newest whose bindings were looked at
REBUILD = "run 'dspark build --engine tensorrt' on this machine again"
MARGIN_BYTES = 512 << 20             # CUDA's own context and the kernels' workspace


def require_tensorrt() -> str:
    """The version of the TensorRT that is installed. Raises ConfigurationError when there is none that will do."""
    wanted = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST_MAJOR}.x"
    try:
        version = str(importlib.import_module("tensorrt").__version__)
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            f"the Python package tensorrt cannot be imported ({error}); a TensorRT engine needs version {wanted}: "
            "install it, or use a container that has it"
        ) from error
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST or numbers[0] > NEWEST_MAJOR:
        raise ConfigurationError(f"TensorRT {version} is installed; a TensorRT engine needs {wanted}")
    return version


def check_plan_facts(folder: Path, plan: PlanFacts, version: str, device: Device) -> None:
    """Raise ConfigurationError when the plan was built by another TensorRT or for another GPU architecture."""
    if plan.tensorrt != version:
        raise ConfigurationError(f"{folder} was built by TensorRT {plan.tensorrt}, this is {version}; {REBUILD}")
    if plan.compute_capability != device.compute_capability:
        raise ConfigurationError(
            f"{folder} was built for compute capability {plan.compute_capability} ({plan.gpu}), this GPU "
            f"({device.name}) has {device.compute_capability}; {REBUILD}"
        )


def check_memory(folder: Path, plan_bytes: int, cache_bytes: int, buffer_bytes: int, device: Device) -> None:
    """Raise ConfigurationError when plans, caches and buffers do not fit into the GPU's free memory."""
    needed = plan_bytes + cache_bytes + buffer_bytes + MARGIN_BYTES
    if needed > device.free_bytes:
        parts = ", ".join(
            f"{name} {count / 2**30:.1f}"
            for name, count in (("weights", plan_bytes), ("KV caches", cache_bytes), ("buffers", buffer_bytes))
        )
        raise ConfigurationError(
            f"{folder} needs {needed / 2**30:.1f} GiB of GPU memory ({parts}, the rest for CUDA), but "
            f"{device.free_bytes / 2**30:.1f} GiB are free on {device.name}; free some, or build with fewer slots or a "
            "shorter context"
        )


def check_engine(path: Path, engine: trt.ICudaEngine, contract: GraphContract, profiles: int) -> None:
    """Raise ConfigurationError when a loaded plan is not the one that its engine.json describes."""
    if engine.num_optimization_profiles != profiles:
        raise ConfigurationError(
            f"{path} has {engine.num_optimization_profiles} optimisation profiles, expected {profiles}; {REBUILD}"
        )
    wanted = {tensor.name: tensor for tensor in contract.tensors}
    given = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    if given != set(wanted):
        differing = ", ".join(sorted(given ^ set(wanted)))
        raise ConfigurationError(f"{path} has other inputs and outputs than expected ({differing}); {REBUILD}")
    for name, tensor in wanted.items():
        shape = tuple(axis if isinstance(axis, int) else -1 for axis in tensor.shape)
        found = dtype_name(engine.get_tensor_dtype(name)), tuple(engine.get_tensor_shape(name))
        if found != (tensor.dtype, shape):
            raise ConfigurationError(f"{path}: {name} is {found}, expected {(tensor.dtype, shape)}; {REBUILD}")
        if name.startswith(NEW) and engine.get_aliased_input_tensor(name) != PAST + name.removeprefix(NEW):
            raise ConfigurationError(f"{path}: {name} is not updated in place; {REBUILD}")


def dtype_name(dtype: trt.DataType) -> str:
    """TensorRT's type by the name that GraphTensor gives it."""
    import tensorrt as trt

    names = {
        trt.DataType.FLOAT: "float32",
        trt.DataType.HALF: "float16",
        trt.DataType.BF16: "bfloat16",
        trt.DataType.INT32: "int32",
        trt.DataType.INT64: "int64",
        trt.DataType.BOOL: "bool",
    }
    return names.get(dtype, str(dtype))
