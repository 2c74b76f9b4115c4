"""`dspark bench` and `dspark report`: their options and help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from dspark.errors import ConfigurationError

from dspark_client.options import (
    CheckpointOption,
    Engine,
    EngineOption,
    JsonOption,
    LimitOption,
    MaxTokensOption,
    TemperatureOption,
    Verification,
    VerificationOption,
)
from dspark_client.paths import DEFAULT_CHECKPOINT

DEFAULT_POLICIES = "none,fixed:3,adaptive,adaptive+lookup"


def bench(
    prompts: Annotated[
        list[Path] | None, typer.Option("--prompts", help="Files of JSON lines {id, domain, turns}.")
    ] = None,
    policies: Annotated[str, typer.Option(help="Compared on one server, turn and turn about.")] = DEFAULT_POLICIES,
    verification: VerificationOption = Verification.standard,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, such as 1,2,4,8.")] = "1,2,4,8",
    rate: Annotated[str, typer.Option(help="Instead: Poisson arrivals at these requests a second, as 0.5,1,2.")] = "",
    by_domain: Annotated[bool, typer.Option(help="A point for each domain, or domains mixed.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Samples of a point; medians and spreads are reported.")] = 3,
    limit: LimitOption = 16,
    max_tokens: MaxTokensOption = 64,
    temperature: TemperatureOption = 0.0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on to --max-tokens after an answer's end.")]
    = False,
    requests_per_stream: Annotated[int, typer.Option(min=1, help="Requests of a sample for each one in flight.")] = 3,
    min_requests: Annotated[int, typer.Option(min=1, help="Fewest requests of a sample.")] = 8,
    rate_seconds: Annotated[float, typer.Option(min=1.0, help="How long requests arrive, with --rate.")] = 30.0,
    slo_ttft: Annotated[float | None, typer.Option(min=0.0, help="Goal: ms to the first token.")] = None,
    slo_itl: Annotated[float | None, typer.Option(min=0.0, help="Goal: mean ms between a request's tokens.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0.0, help="Begin no sample after so many seconds.")] = None,
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    address: Annotated[
        str | None, typer.Option(help="gRPC address of a running server with switchable_policies; else one is started.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of policies, arrivals and sampled answers.")] = 0,
    against_bare: Annotated[
        bool, typer.Option("--against-bare", help="Instead: the server against the bare engine; 8 and 16 streams.")
    ] = False,
    simulate: Annotated[
        Path | None, typer.Option(help="Instead, without a server: step times from a curve.json or a published table.")
    ] = None,
    acceptance: Annotated[
        Path | None, typer.Option(help="With --simulate: rounds that 'dspark calibrate --record' wrote.")
    ] = None,
    simulated_rounds: Annotated[int, typer.Option(min=1, help="With --simulate: rounds of a sample.")] = 2000,
    json_file: JsonOption = None,
) -> None:
    """Compare policies on one server: tokens/s, latency and goodput over concurrency, or over arrivals a second.

    The JSON file is written after every sample; the same command goes on where it was interrupted.

    Example: dspark bench --prompts client/prompts/sample.jsonl --policies none,adaptive --json bench.json
    """
    from dspark_client.bench import Goals, Level, LoadSize
    from dspark_client.bench.against_bare import run_against_bare
    from dspark_client.bench.command import SweepOptions, sweep
    from dspark_client.bench.simulated import SimulationOptions, simulated_sweep
    from dspark_client.deployment import serving_settings
    from dspark_client.prompts import read_prompts
    from dspark_client.reporting import parse_numbers, parse_rates, report
    from dspark_client.transport import Generation

    names = _names(policies)
    if simulate is not None:
        if acceptance is None:
            raise ConfigurationError("--simulate replays recorded rounds: name their file with --acceptance")
        levels = parse_numbers("concurrency", concurrency)
        options = SimulationOptions(simulate, acceptance, names, levels, by_domain, repeats, simulated_rounds, seed)
        return report(simulated_sweep(options), json_file)
    if not prompts:
        raise ConfigurationError("a server is measured with prompts: name their files with --prompts")
    found = read_prompts(prompts, limit)
    if against_bare:
        drafting = next((name for name in names if name != "none"), "none")
        settings = replace(serving_settings(checkpoint, engine.value, drafting), verification=verification.value)
        return report(run_against_bare(settings, found, max_tokens, repeats), json_file)
    closed = [Level(concurrency=streams) for streams in parse_numbers("concurrency", concurrency)]
    asked = SweepOptions(
        policies=names, levels=[Level(rate=r) for r in parse_rates("rate", rate)] if rate else closed, prompts=found,
        generation=Generation(max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=ignore_eos),
        by_domain=by_domain, repeats=repeats, size=LoadSize(requests_per_stream, rate_seconds, min_requests),
        goals=Goals(slo_ttft, slo_itl), json_file=json_file, max_seconds=max_seconds, address=address,
    )
    measured = sweep(asked, replace(serving_settings(checkpoint, engine.value), verification=verification.value))
    report(measured, None)
    if measured.missing:
        typer.echo(f"{measured.missing} samples were not measured in time: the same command goes on", err=True)


def draw_report(
    results: Annotated[list[Path], typer.Argument(help="JSON of dspark bench, perf_analyzer or genai-perf.")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Draw measurements as one page without links: throughput against speed a user, budgets, ratios, latencies.

    Example: dspark report bench.json profile.json --output report.html
    """
    from dspark_client.report import write_report

    write_report(results, output)
    typer.echo(f"{output} is written")


def _names(policies: str) -> list[str]:
    names = [name.strip() for name in policies.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise ConfigurationError(f"policies {policies!r}: different names are expected, such as none,fixed:3,adaptive")
    return names
