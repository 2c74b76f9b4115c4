"""`dspark train compare`: drafters side by side on recorded responses, by replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from dspark.errors import ConfigurationError

from dspark_client import paths


def compare(
    responses: Annotated[Path, typer.Option(help="Responses of evaluation prompts, as generate leaves them.")],
    states: Annotated[Path, typer.Option(help="Their hidden states.")],
    drafter: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER, one for each row of the table.")] = None,
    lookup: Annotated[bool, typer.Option(help="Also prompt lookup, alone and before each drafter.")] = False,
    ratio: Annotated[
        list[str] | None, typer.Option(help="NAME/NAME: rows whose ratio is wanted; else the first over every other.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw to this name with -positions and -sweep put before its ending.")
    ] = None,
    lookup_block: Annotated[int, typer.Option(min=1, help="Drafts a round of lookup alone.")] = 7,
    limit: Annotated[int, typer.Option(min=0, help="Responses a data set and temperature; 0: all.")] = 0,
    window: Annotated[int, typer.Option(min=1, help="Context rows that a block sees.")] = 256,
    checkpoint: Annotated[str, typer.Option(help="Name of the prepared target.")] = paths.DEFAULT_CHECKPOINT,
    device: Annotated[str, typer.Option(help="Torch device: cpu, cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    seed: int = 0,
) -> None:
    """Compare drafters on recorded responses: tau by data set with intervals, ratios, acceptance by position.

    Example: dspark train compare --responses R --states S --drafter vanilla=a --drafter none=b --lookup --markdown t.md
    """
    from dspark_build.evaluation import CompareConfig, compare_drafters, draw, figure_paths
    from dspark_build.evaluation import markdown as tables
    from dspark_build.progress import progress_bars

    folders = _pairs(drafter or [], "=", "drafter", "NAME=FOLDER")
    drafters = {name: Path(folder) for name, folder in folders}
    if len(drafters) < len(folders):
        raise ConfigurationError("two drafters have the same name: every row needs one of its own")
    config = CompareConfig(
        target=paths.prepared_checkpoint(checkpoint),
        responses=responses,
        states=states,
        drafters=drafters,
        ratios=tuple(_pairs(ratio or [], "/", "ratio", "NAME/NAME")),
        lookup=lookup,
        lookup_block=lookup_block,
        limit=limit,
        window=window,
        seed=seed,
        device=device,
        threads=threads,
    )
    if plot is not None:
        figure_paths(plot)           # a name that cannot be drawn is known before anything is measured
    with progress_bars() as progress:
        comparison = compare_drafters(config, progress)
    text = tables(comparison)
    typer.echo(text)
    for path, content in ((json, comparison.to_json()), (markdown, text)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    if plot is not None:
        typer.echo(f"pictures in {' and '.join(map(str, draw(comparison, plot)))}")


def _pairs(texts: Sequence[str], separator: str, name: str, form: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        first, _, second = (part.strip() for part in text.partition(separator))
        if not first or not second:
            raise ConfigurationError(f"{name} {text!r}: {form} is expected")
        pairs.append((first, second))
    return pairs
