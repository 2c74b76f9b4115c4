"""What must hold before a TensorRT-LLM engine may serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.engines.cuda_runtime import Device, find_device
from dspark.engines.tensorrt_checks import check_memory, dtype_name
from dspark.engines.tensorrt_llm_record import ENGINE_PLAN, LlmPlanFacts
from dspark.engines.tensorrt_llm_tensors import EngineTensor, PagedShape
from dspark.engines.tensorrt_llm_version import require_tensorrt_llm
from dspark.errors import ConfigurationError

if TYPE_CHECKING:
    import tensorrt as trt

REBUILD = "run 'dspark build --engine tensorrt_llm' on this machine again"


def check_before_loading(
    folder: Path, plan: LlmPlanFacts, shape: PagedShape, inputs: Sequence[EngineTensor], outputs: Sequence[EngineTensor]
) -> None:
    """Raise ConfigurationError for a missing file, another TensorRT-LLM or GPU than built for, or too little memory."""
    path = folder / ENGINE_PLAN
    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist; {REBUILD}")
    version = require_tensorrt_llm()
    if plan.tensorrt_llm != version:
        raise ConfigurationError(
            f"{folder} was built by TensorRT-LLM {plan.tensorrt_llm}, this is {version}; {REBUILD}"
        )
    device = find_device()
    _check_capability(folder, plan, device)
    buffers = sum(shape.most_bytes(tensor) for tensor in (*inputs, *outputs) if not tensor.on_host)
    check_memory(folder, path.stat().st_size, shape.pool_bytes, buffers, device)


def check_tensors(path: Path, engine: trt.ICudaEngine, tensors: Sequence[EngineTensor]) -> None:
    """Raise ConfigurationError when a loaded engine's inputs and outputs are not those that engine.json describes."""
    wanted = {tensor.name: tensor for tensor in tensors}
    given = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    if given != set(wanted):
        differing = ", ".join(sorted(given ^ set(wanted)))
        raise ConfigurationError(f"{path} has other inputs and outputs than expected ({differing}); {REBUILD}")
    for name, tensor in wanted.items():
        found = dtype_name(engine.get_tensor_dtype(name))
        if found != tensor.dtype:
            raise ConfigurationError(f"{path}: {name} is {found}, expected {tensor.dtype}; {REBUILD}")


def _check_capability(folder: Path, plan: LlmPlanFacts, device: Device) -> None:
    if plan.compute_capability != device.compute_capability:
        raise ConfigurationError(
            f"{folder} was built for compute capability {plan.compute_capability} ({plan.gpu}), this GPU "
            f"({device.name}) has {device.compute_capability}; {REBUILD}"
        )
