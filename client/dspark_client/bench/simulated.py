"""`dspark bench --simulate`: the points of a sweep without a server, from recorded rounds and measured step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling import Calibration, Policy, StepCosts, ThroughputCurve, make_policy
from dspark.scheduling.curve_record import CURVE_FILE, CurveRecord

from dspark_client.bench.plan import ALL_DOMAINS, Level, Run, plan_runs
from dspark_client.bench.points import Point, summarise
from dspark_client.bench.samples import Sample, percentiles
from dspark_client.load import load_progress
from dspark_client.published_curve import PublishedCosts, is_published_table, read_object
from dspark_client.recorded_rounds import read_recorded_rounds
from dspark_client.simulation import SimulatedRound, Simulation

WARM_UP_ROUNDS = 50                  # not counted: a policy learns what to expect


@dataclass(frozen=True)
class SimulationOptions:
    """A whole sweep, as asked for."""

    curve: Path                      # a curve.json, or a published table (published_curve.py)
    acceptance: Path
    policies: Sequence[str]
    concurrencies: Sequence[int]
    by_domain: bool
    repeats: int
    rounds: int
    seed: int


@dataclass(frozen=True)
class SimulationSettings:
    """What the points are of, in the names of the JSON."""

    simulated: bool
    curve: str
    acceptance: str
    sequences: int
    rounds: int
    seed: int


@dataclass(frozen=True)
class SimulationReport:
    """The result, in the names of its JSON; points as of a sweep, without times to the first token."""

    points: list[Point]
    settings: SimulationSettings
    samples: list[Sample]


def simulated_sweep(options: SimulationOptions) -> SimulationReport:
    """Every policy at every concurrency. Raises ConfigurationError for a file or policy that cannot be simulated."""
    recordings = read_recorded_rounds(options.acceptance)
    gamma = recordings[0].logits.shape[1]
    costs = _costs(options.curve, gamma)
    calibration = Calibration.read(EngineFolder(options.curve.parent).drafter, gamma)
    policies = {name: _policy(name, gamma, costs) for name in options.policies}         # all checked before any is run
    domains = list(dict.fromkeys(found.domain for found in recordings)) if options.by_domain else [ALL_DOMAINS]
    levels = [Level(concurrency=streams) for streams in options.concurrencies]
    runs = plan_runs(options.policies, levels, domains, options.repeats, options.seed)
    samples = []
    with load_progress() as progress:
        for run in progress.track(runs, description="simulated runs"):
            chosen = [found for found in recordings if run.domain in (ALL_DOMAINS, found.domain)]
            simulation = Simulation(
                _policy(run.policy, gamma, costs), costs, chosen, run.concurrency or 1,
                options.seed + run.repeat, None if calibration is None else calibration.temperatures,
            )
            samples.append(_sample(run, simulation, options.rounds))
    settings = SimulationSettings(
        True, options.curve.name, options.acceptance.name, len(recordings), options.rounds, options.seed
    )
    order = {name: place for place, name in enumerate(policies)}
    samples.sort(key=lambda sample: (sample.run.repeat, sample.run.concurrency, order[sample.run.policy]))
    return SimulationReport(summarise(samples), settings, samples)


def _costs(path: Path, gamma: int) -> StepCosts:
    """Step times, of whatever engine and machine they are."""
    if is_published_table(path):
        return PublishedCosts.of(read_object(path))
    if path.name != CURVE_FILE:
        raise ConfigurationError(f"{path} is neither a published table nor called {CURVE_FILE}, as profiles are")
    return ThroughputCurve.of(CurveRecord.read(EngineFolder(path.parent)), gamma)


def _policy(name: str, gamma: int, costs: StepCosts) -> Policy:
    policy = make_policy(name, gamma, costs)
    if policy.uses_lookup:
        raise ConfigurationError(f"policy {name!r} cannot be simulated: recorded rounds hold no tokens to look up")
    return policy


def _sample(run: Run, simulation: Simulation, rounds: int) -> Sample:
    for _ in range(WARM_UP_ROUNDS):
        simulation.round()
    found = [simulation.round() for _ in range(rounds)]
    tokens, seconds = sum(int(r.tokens.sum()) for r in found), sum(r.seconds for r in found)
    streams, speed = len(found[0].tokens), round(tokens / seconds, 2)
    return Sample(
        run=run, requests=0, refused=0, tokens=tokens, wall_s=round(seconds, 4), window_s=round(seconds, 4),
        tokens_per_second=speed, tokens_per_second_whole=speed, tokens_per_second_per_user=round(speed / streams, 2),
        ttft_ms=None, itl_ms=percentiles(np.concatenate([_gaps_ms(r) for r in found]).tolist()),
        rounds=rounds * streams, drafted=sum(r.drafted for r in found),
        verified=sum(int(r.lengths.sum()) for r in found), accepted=tokens - rounds * streams,
    )


def _gaps_ms(found: SimulatedRound) -> np.ndarray:
    """Milliseconds between tokens: every token of a stream's n has an n-th of the round."""
    return np.repeat(1e3 * found.seconds / found.tokens, found.tokens)
