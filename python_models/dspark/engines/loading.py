"""Which engine module an engine.json names."""

from __future__ import annotations

from pathlib import Path

from dspark.engines.contract import DrafterEngine, DrafterLimits, TargetEngine, TargetLimits
from dspark.engines.engine_json import ENGINE_JSON, REBUILD, engine_name, read_limits
from dspark.errors import ConfigurationError


def load_target(folder: str | Path, threads: int = 0, exact: bool = True) -> TargetEngine:
    """Load the target engine in `folder` and warm it up.

    threads: CPU threads, 0 for all cores; exact: keep plain and speculative decoding bit-identical (costs a few
    percent of the smallest steps). Raises ConfigurationError when the folder holds no target this library can run.
    """
    folder = Path(folder)
    name = engine_name(folder)
    if name == "openvino-target":
        from dspark.engines.openvino_target import OpenVinoTarget

        return OpenVinoTarget(folder, threads, exact)
    if name == "tensorrt-target":
        from dspark.engines.tensorrt_target import TensorRtTarget

        return TensorRtTarget(folder)
    if name == "tensorrt_llm-target":
        from dspark.engines.tensorrt_llm_target import TensorRtLlmTarget

        return TensorRtLlmTarget(folder)
    raise _unknown(folder, name, "target")


def load_drafter(folder: str | Path) -> DrafterEngine:
    """Load the drafter engine in `folder`. Raises ConfigurationError when it holds none this library can run."""
    folder = Path(folder)
    name = engine_name(folder)
    if name == "openvino-drafter":
        from dspark.engines.openvino_drafter import OpenVinoDrafter

        return OpenVinoDrafter(folder)
    if name == "tensorrt-drafter":
        from dspark.engines.tensorrt_drafter import TensorRtDrafter

        return TensorRtDrafter(folder)
    if name == "tensorrt_llm-drafter":
        from dspark.engines.tensorrt_llm_drafter import TensorRtLlmDrafter

        return TensorRtLlmDrafter(folder)
    raise _unknown(folder, name, "drafter")


def read_target_limits(folder: str | Path) -> TargetLimits:
    """The limits of the target in `folder`, without loading it. Raises ConfigurationError."""
    return read_limits(Path(folder), TargetLimits)


def read_drafter_limits(folder: str | Path) -> DrafterLimits:
    """The limits of the drafter in `folder`, without loading it. Raises ConfigurationError."""
    return read_limits(Path(folder), DrafterLimits)


def _unknown(folder: Path, name: str, role: str) -> ConfigurationError:
    return ConfigurationError(f"{folder / ENGINE_JSON}: {name!r} is not a {role} engine this version knows; {REBUILD}")
