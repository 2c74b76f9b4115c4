"""The parts of TensorRT-LLM's Python API that this project uses: the line that builds engines, 1.0 to 1.2.1.

Written from the public sources of that line, read and never run: the package is in NVIDIA's containers only. What could
not be read in a source of that very line says so with "unconfirmed".
"""

from tensorrt_llm.builder import Builder as Builder
from tensorrt_llm.functional import Tensor as Tensor
from tensorrt_llm.module import Module as Module
from tensorrt_llm.network import Network as Network
from tensorrt_llm.network import net_guard as net_guard

__version__: str
