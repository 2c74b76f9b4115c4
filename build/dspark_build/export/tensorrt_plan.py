"""From an ONNX file to a TensorRT plan: parse, set the ranges of every free axis, build.

TensorRT is imported inside the functions: it is no requirement of this project, and the GPU check puts TensorRT-RTX,
which has the same API, in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.engines.tensorrt_contract import GraphContract
from dspark.errors import ConfigurationError

if TYPE_CHECKING:
    import tensorrt as trt

WORKSPACE_BYTES = 4 << 30            # what one layer's kernel may use; the builder takes a slower one that needs less


@dataclass(frozen=True)
class AxisRange:
    """How long an axis may be, and for which length kernels are chosen."""

    least: int
    usual: int
    most: int


Profile = Mapping[str, AxisRange]    # letter of a GraphContract -> range


@dataclass(frozen=True)
class ParsedNetwork:
    """A network and what it must not outlive."""

    builder: trt.Builder
    network: trt.INetworkDefinition


def parse_onnx(path: Path) -> ParsedNetwork:
    """Parse an ONNX file as a strongly typed network. Raises ConfigurationError with all that the parser says."""
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.Severity.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise ConfigurationError(f"TensorRT {trt.__version__} cannot parse {path}: {errors}")
    return ParsedNetwork(builder, network)


def build_plan(
    parsed: ParsedNetwork,
    contract: GraphContract,
    profiles: Sequence[Profile],
    configure: Callable[[trt.IBuilderConfig], None] = lambda config: None,
) -> bytes:
    """The plan for the GPU of this machine, or for that which `configure` asks for; one optimisation profile each.

    Raises ConfigurationError when TensorRT refuses a profile or finds no kernels.
    """
    import tensorrt as trt

    config = parsed.builder.create_builder_config()
    config.set_memory_pool_limit(pool=trt.MemoryPoolType.WORKSPACE, pool_size=WORKSPACE_BYTES)
    configure(config)
    for ranges in profiles:
        profile = parsed.builder.create_optimization_profile()
        for tensor in contract.inputs:
            least, usual, most = (_shape(tensor.shape, ranges, which) for which in ("least", "usual", "most"))
            profile.set_shape(input=tensor.name, min=least, opt=usual, max=most)
        if config.add_optimization_profile(profile=profile) < 0:
            raise ConfigurationError(f"TensorRT refuses the optimisation profile {dict(ranges)}; its log says why")
    plan = parsed.builder.build_serialized_network(network=parsed.network, config=config)
    if plan is None:
        raise ConfigurationError("TensorRT could not build the network; its log above says which layer has no kernel")
    return bytes(plan)


def _shape(shape: Sequence[int | str], ranges: Profile, which: str) -> tuple[int, ...]:
    return tuple(axis if isinstance(axis, int) else int(getattr(ranges[axis], which)) for axis in shape)
