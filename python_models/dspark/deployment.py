"""From settings to an orchestrator: what an engine folder holds, put together, wherever the engines run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dspark.engines.contract import DrafterResult, DrafterStep, EngineFolder, TargetResult, TargetStep
from dspark.engines.engine_json import REBUILD
from dspark.engines.loading import read_drafter_limits, read_target_limits
from dspark.errors import ConfigurationError
from dspark.orchestrator import Engines, Orchestrator, RequestRules, Tokenizer
from dspark.scheduling import (
    Calibration,
    OnlineCosts,
    Policy,
    ThroughputCurve,
    is_adaptive,
    load_costs,
    make_policy,
    needs_coupling,
)
from dspark.settings import ServingSettings

log = logging.getLogger("dspark")


@dataclass(frozen=True)
class Deployment:
    """An orchestrator that is not started yet, and the rules for its requests."""

    orchestrator: Orchestrator
    rules: RequestRules
    block_size: int
    profiled: bool                   # the policy has a throughput curve, or needs none


def deploy(
    settings: ServingSettings,
    target: Callable[[TargetStep], TargetResult],
    drafter: Callable[[DrafterStep], DrafterResult],
) -> Deployment:
    """Read limits, tokenizer, calibration and throughput curve of the engine folder, and make what serves them.

    Raises ConfigurationError where one of them is missing or does not fit the others.
    """
    folder = EngineFolder(Path(settings.engine_folder))
    engines = Engines(target, drafter, read_target_limits(folder.target), read_drafter_limits(folder.drafter))
    gamma = engines.block_size
    _check_coupling(settings, folder)
    curve = _curve(settings, folder, gamma)
    costs = None if curve is None else OnlineCosts(curve)
    policies = lru_cache(maxsize=None)(lambda name: _policy(name, gamma, costs, settings))
    tokenizer = Tokenizer(folder.tokenizer)
    orchestrator = Orchestrator(
        engines, tokenizer, policies(settings.policy), settings, Calibration.read(folder.drafter, gamma),
        costs=costs if settings.online_costs else None, policies=policies if settings.switchable_policies else None,
    )
    rules = RequestRules(tokenizer, engines.target_limits, settings.default_max_tokens)
    return Deployment(orchestrator, rules, gamma, costs is not None or not is_adaptive(settings.policy))


def check_policy(settings: ServingSettings) -> None:
    """Raises ConfigurationError when the policy, or the curve that it needs, does not fit the engine folder."""
    folder = EngineFolder(Path(settings.engine_folder))
    gamma = min(read_target_limits(folder.target).max_draft_tokens, read_drafter_limits(folder.drafter).block_size)
    _check_rule(settings.policy, settings)
    _check_coupling(settings, folder)
    make_policy(settings.policy, gamma)
    _curve(settings, folder, gamma)


def _curve(settings: ServingSettings, folder: EngineFolder, gamma: int) -> ThroughputCurve | None:
    """The curve that the policy needs; None where it needs none, or where --allow-unprofiled lets it do without."""
    if not (is_adaptive(settings.policy) or settings.switchable_policies):
        return None
    return load_costs(folder, gamma, settings.allow_unprofiled, settings.threads)


def _check_coupling(settings: ServingSettings, folder: EngineFolder) -> None:
    if settings.coupled and not read_drafter_limits(folder.drafter).can_couple:
        raise ConfigurationError(
            f"{folder.drafter} is of an older build, whose drafter cannot draft by the target's noise as verification "
            f"'coupled' wants it; {REBUILD}"
        )


def _check_rule(policy: str, settings: ServingSettings) -> None:
    if needs_coupling(policy) and not settings.coupled:
        raise ConfigurationError(
            f"policy {policy!r} looks at drafts before it decides on them, which biases sampled answers unless "
            "verification is 'coupled': add --verification coupled, or choose 'adaptive'"
        )


def _policy(name: str, gamma: int, costs: OnlineCosts | None, settings: ServingSettings) -> Policy:
    _check_rule(name, settings)
    if is_adaptive(name) and costs is None:
        log.warning("policy %s without a throughput curve: everything is verified; run 'dspark profile'", name)
    return make_policy(name, gamma, costs)
