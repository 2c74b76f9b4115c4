"""`make gpu-check`: parse, check and build the GPU graphs with TensorRT-RTX, which needs no GPU for it. Nothing is run.

TensorRT-RTX has TensorRT's parser and builder interface but is another compiler: a plan that it builds shows that the
graph can be compiled for an architecture, not what TensorRT makes of it, nor how fast or how exact that is.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dspark.errors import ConfigurationError, DSparkError

from dspark_build.export.tensorrt_check import network_faults
from dspark_build.export.tensorrt_plan import build_plan, parse_onnx

if TYPE_CHECKING:
    import tensorrt
    import tensorrt_rtx

    from dspark_build.export.tensorrt_export import Graph

CAPABILITIES = ("SM86", "SM89", "SM120")
SMALL_DRAFTER = {"target_layer_ids": [0, 1], "start_layers": [1], "block_size": 4, "markov_rank": 8}


@dataclass(frozen=True)
class BuiltPlan:
    """One graph built for one architecture."""

    graph: str
    capability: str
    layers: int
    mebibytes: float
    seconds: float


def use_tensorrt_rtx() -> None:
    """Let `import tensorrt` mean TensorRT-RTX in this process. Raises ConfigurationError when it is not installed."""
    try:
        sys.modules["tensorrt"] = importlib.import_module("tensorrt_rtx")
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            f"TensorRT-RTX cannot be imported ({error}); run 'make setup', or pip install -r requirements/gpu-check.txt"
        ) from error


def check_graph(name: str, graph: Graph, capabilities: Sequence[str]) -> Iterator[BuiltPlan]:
    """Parse, compare with the contract, and build for each capability.

    Raises ConfigurationError with every fault of the network, or when it can be parsed or built no further.
    """
    parsed = parse_onnx(graph.path)
    faults = network_faults(parsed.network, graph.contract)
    if faults:
        raise ConfigurationError(f"{name} is not the graph that was meant: {'; '.join(faults)}")
    for capability in capabilities:
        started = time.perf_counter()
        plan = build_plan(parsed, graph.contract, graph.profiles, partial(_aim, capability))
        seconds = time.perf_counter() - started
        yield BuiltPlan(name, capability, parsed.network.num_layers, len(plan) / 2**20, seconds)


def check_model(
    name: str, checkpoint: Path, drafter: Path, capabilities: Sequence[str], precision: str = "fp16"
) -> Iterator[BuiltPlan]:
    """Export and check the target's and the drafter's graphs in a folder that is removed afterwards."""
    from dspark_build.export.tensorrt_export import export_drafter_graphs, export_target_graph
    from dspark_build.export.tensorrt_sizes import TensorRtSizes

    with tempfile.TemporaryDirectory(prefix="dspark-gpu-check-") as folder:
        out, sizes = Path(folder), TensorRtSizes()
        target = export_target_graph(checkpoint, drafter, precision, out, sizes)
        yield from check_graph(f"{name} target", target.graph, capabilities)
        graphs = export_drafter_graphs(drafter, checkpoint, precision, out, sizes)
        yield from check_graph(f"{name} drafter context", graphs.context, capabilities)
        yield from check_graph(f"{name} drafter block", graphs.block, capabilities)


def make_small_model(folder: Path) -> tuple[Path, Path]:
    """A random model in the form of Qwen3 and a drafter for it: checkpoint and drafter folders."""
    from dspark_build.drafters import initialise_drafter, save_drafter_checkpoint
    from dspark_build.tiny import make_tiny_target

    target = make_tiny_target(folder / "target", "qwen3", head_size=32, vocabulary=4352)
    drafter = initialise_drafter(target, mask_token_id=300, **SMALL_DRAFTER)  # type: ignore[arg-type]
    return target, save_drafter_checkpoint(drafter, folder / "drafter", target)


def _aim(capability: str, config: tensorrt.IBuilderConfig) -> None:
    """Build for an architecture instead of this machine's GPU."""
    import tensorrt_rtx

    aimed = cast("tensorrt_rtx.IBuilderConfig", config)
    known: tensorrt_rtx.ComputeCapability | None = getattr(tensorrt_rtx.ComputeCapability, capability, None)
    aimed.num_compute_capabilities = 1
    if known is None or not aimed.set_compute_capability(known, 0):
        raise ConfigurationError(f"TensorRT-RTX {tensorrt_rtx.__version__} does not build for {capability}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dspark_build.gpu_check", description=str(__doc__).splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, help="prepared checkpoint of a model to check besides the small one")
    parser.add_argument("--drafter", type=Path, help="its drafter")
    parser.add_argument("--capabilities", default=",".join(CAPABILITIES), help="for the small model")
    parser.add_argument("--model-capabilities", default="SM89", help="for the given model, whose plans take longer")
    options = parser.parse_args(arguments)
    if (options.checkpoint is None) != (options.drafter is None):
        parser.error("--checkpoint and --drafter go together")
    try:
        use_tensorrt_rtx()
        with tempfile.TemporaryDirectory(prefix="dspark-gpu-check-") as folder:
            small = make_small_model(Path(folder))
            _report(check_model("small", *small, options.capabilities.split(",")))
        if options.checkpoint is not None:
            model = (options.checkpoint, options.drafter)
            _report(check_model(options.checkpoint.name, *model, options.model_capabilities.split(",")))
    except DSparkError as error:
        print(f"gpu-check failed: {error}", file=sys.stderr)
        return 1
    print("gpu-check passed: built by TensorRT-RTX, run nowhere")
    return 0


def _report(plans: Iterator[BuiltPlan]) -> None:
    for plan in plans:
        print(
            f"{plan.graph:40} {plan.capability:6} {plan.layers:6} layers {plan.mebibytes:9.1f} MiB "
            f"{plan.seconds:7.1f} s", flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
