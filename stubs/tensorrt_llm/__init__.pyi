"""The parts of TensorRT-LLM's Python API that this project uses: the line that builds engines, 1.0 to 1.2.1.

Written from public sources of about that time, read and never run: the package is in NVIDIA's containers only. Which
release each source belongs to is not known; docs/gpu.md says more.
"""

from tensorrt_llm.builder import Builder as Builder
from tensorrt_llm.functional import Tensor as Tensor
from tensorrt_llm.module import Module as Module
from tensorrt_llm.network import Network as Network
from tensorrt_llm.network import net_guard as net_guard

__version__: str
