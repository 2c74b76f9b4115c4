"""`dspark doctor`: its options and help."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from dspark.errors import ConfigurationError

from dspark_client.options import DEFAULT_POLICY, CheckpointOption, Engine, EngineOption, JsonOption, PolicyOption
from dspark_client.paths import DEFAULT_CHECKPOINT
from dspark_client.ports import Ports

NOT_WELL = 1


class WeightPrecision(str, Enum):
    """Of the weights in a plan."""

    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    fp8 = "fp8"


def doctor(
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    policy: PolicyOption = DEFAULT_POLICY,
    host: Annotated[str, typer.Option(help="Address that the server would listen on.")] = "127.0.0.1",
    http_port: int = Ports.http,
    grpc_port: int = Ports.grpc,
    metrics_port: int = Ports.metrics,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of the target; 0 takes all cores.")] = 0,
    plan: Annotated[
        Path | None, typer.Option(help="Instead: the GPU memory that the model of this folder's config.json needs.")
    ] = None,
    drafter: Annotated[Path | None, typer.Option(help="With --plan: folder of its drafter.")] = None,
    gpu: Annotated[str | None, typer.Option(help="With --plan: a GPU by name, such as L4 or H100.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(min=0.0, help="With --plan: GiB of GPU memory instead.")] = None,
    context: Annotated[int, typer.Option(min=1, help="With --plan: longest sequence, in tokens.")] = 4096,
    slots: Annotated[int, typer.Option(min=1, help="With --plan: sequences decoded together.")] = 32,
    precision: Annotated[
        WeightPrecision, typer.Option(help="With --plan: of the weights.")
    ] = WeightPrecision.bf16,
    json_file: JsonOption = None,
) -> None:
    """Look whether a server can start on this machine, and say what to do where it cannot: status 0 or 1.

    With --plan, tell before anything is built whether a model fits on a GPU (status 0 or 1), and how many slots do.

    Example: dspark doctor --engine int8 --json doctor.json
    """
    if plan is not None:
        found = _plan(plan, drafter, gpu, gpu_memory, context, slots, precision)
        well = found.fits
    elif drafter is not None or gpu is not None or gpu_memory is not None:
        raise ConfigurationError("--drafter, --gpu and --gpu-memory belong to --plan: name a model's folder with it")
    else:
        found = _diagnosis(checkpoint, engine, policy, Ports(http_port, grpc_port, metrics_port), host, threads)
        well = found.can_serve
    if json_file is not None:
        from dspark_client.reporting import write

        write(json_file, json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False) + "\n")
    raise typer.Exit(0 if well else NOT_WELL)


def _diagnosis(checkpoint: str, engine: Engine, policy: str, ports: Ports, host: str, threads: int) -> Any:
    from dspark_client.deployment import serving_settings
    from dspark_client.doctor import diagnose

    settings = dataclasses.replace(serving_settings(checkpoint, engine.value, policy), threads=threads)
    found = diagnose(settings, ports, host)
    typer.echo(found.text())
    return found


def _plan(
    folder: Path, drafter: Path | None, gpu: str | None, gpu_memory: float | None, context: int, slots: int,
    precision: WeightPrecision,
) -> Any:
    try:
        from dspark_client.doctor import plan as planning
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is missing, which planning needs: run 'make setup'") from error
    from dspark_client.doctor.gpus import gpu_memory_gib

    if gpu is not None and gpu_memory is not None:
        raise ConfigurationError("--gpu and --gpu-memory say the same: give one of them")
    name, gib = gpu_memory_gib(gpu) if gpu_memory is None else (f"{gpu_memory:g} GiB", gpu_memory)
    found = planning.plan(folder, drafter, name, gib, context, slots, planning.Precision(precision.value))
    planning.show(found)
    return found
