"""What TensorRT-RTX has besides TensorRT's own API: it builds for GPUs that are not there."""

from typing import ClassVar

import tensorrt

__version__: str

class ComputeCapability:
    SM75: ClassVar[ComputeCapability]
    SM80: ClassVar[ComputeCapability]
    SM86: ClassVar[ComputeCapability]
    SM89: ClassVar[ComputeCapability]
    SM120: ClassVar[ComputeCapability]
    SM121: ClassVar[ComputeCapability]

class IBuilderConfig(tensorrt.IBuilderConfig):
    num_compute_capabilities: int
    def set_compute_capability(self, compute_capability: ComputeCapability, index: int) -> bool: ...
