"""What `dspark bench` does with its options: checks them all, then measures, and leaves nothing running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.engines.machine import cpu_model
from dspark.errors import ConfigurationError
from dspark.scheduling import is_adaptive
from dspark.settings import ServingSettings

from dspark_client.bench.goals import Goals
from dspark_client.bench.plan import Level, LoadSize, domains_of, plan_runs
from dspark_client.bench.record import SweepFile, SweepReport, SweepSettings
from dspark_client.bench.sweep import Bench, prompts_hash, run_sweep
from dspark_client.deployment import check_deployment
from dspark_client.load import load_progress
from dspark_client.prompts import Prompt
from dspark_client.server_run import listens
from dspark_client.sessions import own_server
from dspark_client.transport import Connection, Generation


@dataclass(frozen=True)
class SweepOptions:
    """A whole sweep, as asked for."""

    policies: Sequence[str]
    levels: Sequence[Level]
    prompts: Sequence[Prompt]
    generation: Generation           # max_tokens, temperature, seed, ignore_eos
    by_domain: bool
    repeats: int
    size: LoadSize
    goals: Goals
    json_file: Path | None = None
    max_seconds: float | None = None
    address: str | None = None       # of a server with switchable policies; None: one of our own


def sweep(options: SweepOptions, settings: ServingSettings) -> SweepReport:
    """Measure, or go on with what the JSON file holds. Raises DSparkError, ConfigurationError before it begins."""
    file = SweepFile(options.json_file, sweep_settings(options, settings))
    runs = plan_runs(
        options.policies, options.levels, domains_of(options.prompts, options.by_domain), options.repeats,
        options.generation.seed or 0,
    )
    if set(runs) - file.measured:
        with _server(options, settings) as (connection, metrics_address), load_progress() as progress:
            bench = Bench(
                connection, options.prompts, options.generation, options.size, options.goals, metrics_address
            )
            run_sweep(bench, runs, file, progress, options.max_seconds)
    return file.save(runs)


def sweep_settings(options: SweepOptions, settings: ServingSettings) -> SweepSettings:
    """What the samples of this sweep have in common."""
    generation, size, goals = options.generation, options.size, options.goals
    return SweepSettings(
        engine=options.address or EngineFolder(Path(settings.engine_folder)).root.name, machine=cpu_model(),
        prompts=len(options.prompts), prompts_hash=prompts_hash(options.prompts),
        max_tokens=generation.max_tokens or 0, temperature=generation.temperature or 0.0,
        ignore_eos=bool(generation.ignore_eos), seed=generation.seed or 0,
        requests_per_stream=size.per_stream, rate_seconds=size.seconds, min_requests=size.at_least,
        slo_ttft_ms=goals.ttft_ms, slo_itl_ms=goals.itl_ms, verification=settings.verification,
    )


@contextmanager
def _server(options: SweepOptions, settings: ServingSettings) -> Iterator[tuple[Connection, str | None]]:
    """A connection, and the address of the metrics where it is known."""
    if options.address is not None:
        if not listens(options.address):
            raise ConfigurationError(f"no server listens on {options.address}: start one, or leave out --address")
        with Connection(options.address) as connection:
            yield connection, None
        return
    for policy in options.policies:
        check_deployment(replace(settings, policy=policy))
    adaptive = [policy for policy in options.policies if is_adaptive(policy)]
    most = max(level.concurrency or 1 for level in options.levels)
    own = replace(
        settings, policy=[*adaptive, *options.policies][0], switchable_policies=True,
        allow_unprofiled=settings.allow_unprofiled or not adaptive,      # a curve is needed where a policy reads it
        max_slots=max(settings.max_slots, most), max_queue=max(settings.max_queue, most),
    )
    with own_server(own) as server:
        yield server.connection, server.metrics_address
