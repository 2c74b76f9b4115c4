"""`dspark profile`: its options and help."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from dspark_client.options import CheckpointOption, Engine, EngineOption, JsonOption
from dspark_client.paths import DEFAULT_CHECKPOINT


def profile(
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of the target, as served; 0 takes all.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.01, help="Stop after so long, settled or not.")] = 4.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do nothing where this build was measured on this machine already.")
    ] = False,
    json_file: JsonOption = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw the curve here.")] = None,
) -> None:
    """Measure the time of steps of all sizes on this machine: the adaptive policies choose by it.

    Writes curve.json beside the engine, for this build, this machine and this number of threads. Let the machine do
    nothing else. The engines are measured without Triton, whose part the server learns from the steps it serves.

    Example: dspark profile --engine int8 --plot curve.png
    """
    from dspark_client import paths
    from dspark_client.acceptance_report import check_plot
    from dspark_client.profile import is_measured
    from dspark_client.profile import profile as measure
    from dspark_client.profile_report import plot, table
    from dspark_client.reporting import write

    if plot_file is not None:
        check_plot(plot_file)
    folder = paths.engine_folder(checkpoint, engine.value)
    if keep and is_measured(folder, threads):
        return typer.echo(f"{folder.root} is measured already")
    report = measure(folder, threads, minutes)
    typer.echo(table(report))
    if report.message:
        typer.echo(f"not stable: {report.message}; run it again while the machine does nothing else", err=True)
    if json_file is not None:
        write(json_file, json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    if plot_file is not None:
        plot(report.curve, plot_file)
