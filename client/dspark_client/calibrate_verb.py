"""`dspark calibrate`: its options and help."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError

from dspark_client.options import (
    LARGEST_SEED,
    CheckpointOption,
    Engine,
    EngineOption,
    JsonOption,
    LimitOption,
    MaxTokensOption,
    PromptsOption,
)
from dspark_client.paths import DEFAULT_CHECKPOINT


def calibrate(
    prompts: PromptsOption,
    limit: LimitOption = None,
    max_tokens: MaxTokensOption = 128,
    temperatures: Annotated[str, typer.Option(help="Of the requests that will be served, such as 0,1.")] = "0,1",
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    holdout: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Share of the prompts that judge the fit and take no part in it.")
    ] = 0.3,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Of sampled answers and of the split.")] = 0,
    record: Annotated[
        Path | None, typer.Option(help="Write the rounds here, one a line: what bench --simulate replays.")
    ] = None,
    json_file: JsonOption = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write a table of the result here.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw predicted against observed survival here, by position.")
    ] = None,
) -> None:
    """Fit the drafter's confidence to what is accepted; writes calibration.json beside the drafter's engine.

    Every prompt is answered at every temperature with whole blocks verified. One temperature a position is fitted on a
    part of the prompts (sequential temperature scaling); calibration errors and AUC are those of the held-out others.

    Example: dspark calibrate --prompts client/prompts/sample.jsonl --temperatures 0,1 --plot reliability.png
    """
    from dspark_client.acceptance_report import check_plot
    from dspark_client.calibrate import CalibrationOptions, recording
    from dspark_client.calibrate import calibrate as run
    from dspark_client.calibration_report import markdown, plot
    from dspark_client.deployment import serving_settings
    from dspark_client.prompts import read_prompts
    from dspark_client.reporting import report, write

    if plot_file is not None:
        check_plot(plot_file)
    settings = serving_settings(checkpoint, engine.value, "full")
    options = CalibrationOptions(_temperatures(temperatures), max_tokens, holdout, concurrency, seed)
    calibrated = run(settings, read_prompts(prompts, limit), options)
    if record is not None:
        write(record, recording(calibrated.answers))
    written = calibrated.record.write(EngineFolder(Path(settings.engine_folder)).drafter)
    report(calibrated.record, json_file)
    if markdown_file is not None:
        write(markdown_file, markdown(calibrated.record))
    if plot_file is not None:
        plot(calibrated.fit, plot_file)
    typer.echo(f"{written} is written; servers read it when they start", err=True)


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(temperature >= 0 and math.isfinite(temperature) for temperature in found):
        raise ConfigurationError(f"temperatures {text!r}: numbers from 0 up are expected, such as 0,1")
    return found
