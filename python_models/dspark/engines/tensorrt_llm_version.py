"""Which TensorRT-LLM can build and run these engines: from 1.0 to the last release with an engine builder."""

from __future__ import annotations

import re
from importlib import metadata

from dspark.errors import ConfigurationError

OLDEST, FIRST_WITHOUT_BUILDER = (1, 0), (1, 3)
NEEDED = (
    "TensorRT-LLM 1.0 up to 1.2.1 is needed; the container "
    "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3 has 1.1.0"
)


def require_tensorrt_llm() -> str:
    """The version of TensorRT-LLM that is installed; nothing is imported.

    Raises ConfigurationError when there is none, when it is older than 1.0, and from 1.3.0 on, which has no engine
    builder and no runtime for engines.
    """
    try:
        version = metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError as error:
        raise ConfigurationError(f"the Python package tensorrt_llm is not installed: {NEEDED}") from error
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if release >= FIRST_WITHOUT_BUILDER:
        raise ConfigurationError(f"TensorRT-LLM {version} has no TensorRT engine builder any more: {NEEDED}")
    if release < OLDEST:
        raise ConfigurationError(f"TensorRT-LLM {version} is too old: {NEEDED}")
    return version
