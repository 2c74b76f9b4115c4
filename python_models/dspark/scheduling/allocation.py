"""Load-aware prefix scheduling: how many drafts pay for themselves, and whose (dspark-spec, section 5).

n draft tokens are admitted over the whole batch. `steps_per_second[n]` is SPS(B) of the step that verifies n of them,
at B = R + n tokens (and whatever prefill rides along), so tau_n = R + (sum of the n admitted survivals) and
Theta_n = tau_n * steps_per_second[n]. All functions are pure; R counts the requests that sample in this step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.engines.contract import Int32
from dspark.errors import ConfigurationError
from dspark.scheduling.confidence import Float64, Int64


def allocate(survival: Float64, limits: Int32, budget: int) -> Int32:
    """Lengths [R] that admit the `budget` likeliest drafts of survival [R, gamma], at most limits [R] of each."""
    requests, _ = _candidates(survival, limits)
    return _lengths(requests[:budget], len(limits))


def causal_greedy(
    survival: Float64, limits: Int32, steps_per_second: Float64, extra_tokens: int = 0,
) -> Int32:
    """Algorithm 1: admit drafts by descending survival up to the first that does not raise Theta; lengths [R].

    Lossless, for no draft's admission looks at survivals below its own. `extra_tokens` are what others give in the same
    step. Raises ConfigurationError where the curve steps_per_second [N + 1] does not reach all N admissible drafts.
    """
    requests, survivals = _candidates(survival, limits)
    rises = np.diff(_throughput(survivals, len(limits) + extra_tokens, steps_per_second)) > 0
    return _lengths(requests[: _first_false(rises)], len(limits))


def marginal_gain(survival: Float64, limits: Int32, prices: Float64) -> Int32:
    """Admit the n-th likeliest draft while its survival exceeds prices[n - 1]; lengths [R].

    Lossless for prices [N] that were fixed before the drafts were drawn, as for `causal_greedy`. Raises
    ConfigurationError where there are fewer prices than admissible drafts.
    """
    requests, survivals = _candidates(survival, limits)
    if prices.size < survivals.size:
        raise ConfigurationError(f"{prices.size} prices for {survivals.size} drafts that may be admitted")
    return _lengths(requests[: _first_false(survivals > prices[: survivals.size])], len(limits))


def likeliest_survivals(survival: Float64, limits: Int32) -> Float64:
    """Survivals [N] of all drafts within limits, descending."""
    return -np.sort(-survival[np.arange(survival.shape[1]) < limits[:, None]])


def convex_minorant(values: Float64) -> Float64:
    """The largest convex sequence [n] that nowhere exceeds values [n]: a staircase as the ramp under it."""
    corners = [0]
    for i in range(1, values.size):
        while len(corners) > 1 and _rise(values, corners[-2], corners[-1]) >= _rise(values, corners[-1], i):
            corners.pop()
        corners.append(i)
    result: Float64 = np.interp(np.arange(values.size), corners, values[corners])
    return result


def best_budget(survival: Float64, limits: Int32, steps_per_second: Float64, extra_tokens: int = 0) -> int:
    """The number of drafts at the global maximum of Theta, the smallest where several reach it.

    `extra_tokens` are what others give in the same step. Raises ConfigurationError where the curve steps_per_second
    [N + 1] does not reach all N admissible drafts.
    """
    survivals = likeliest_survivals(survival, limits)
    return int(_throughput(survivals, len(limits) + extra_tokens, steps_per_second).argmax())


def stale_budget(stale_survival: Float64, survival: Float64, limits: Int32, steps_per_second: Float64) -> Int32:
    """Lengths [R]: the best budget of an earlier round's survivals, given to the likeliest drafts of this one.

    Lossless, because the budget cannot depend on the current draw: stale_survival [R, gamma] must be of a round that
    was drafted earlier (for a request that had none, any fixed prior). Raises ConfigurationError as `best_budget`.
    """
    return allocate(survival, limits, best_budget(stale_survival, limits, steps_per_second))


def _candidates(survival: Float64, limits: Int32) -> tuple[Int64, Float64]:
    """Request and survival [N] of all drafts within limits, likeliest first; ties by position, then by request.

    Since survival does not increase along a block, the first n always form a prefix of every block.
    """
    admissible = np.arange(survival.shape[1])[:, None] < limits          # [gamma, R]: by position, then by request
    requests = np.nonzero(admissible)[1]
    survivals = survival.T[admissible]
    order = (-survivals).argsort(kind="stable")
    return requests[order], survivals[order]


def _throughput(survivals: Float64, requests: int, steps_per_second: Float64) -> Float64:
    """Theta_0..Theta_N, expected tokens per second with the first n candidates admitted."""
    if steps_per_second.size <= survivals.size:
        raise ConfigurationError(
            f"the throughput curve reaches {steps_per_second.size - 1} draft tokens in a step, {survivals.size} may be "
            "admitted; profile the engine for larger steps"
        )
    expected_tokens = requests + np.concatenate([[0.0], survivals.cumsum()])
    return expected_tokens * steps_per_second[: survivals.size + 1]


def _first_false(holds: npt.NDArray[np.bool_]) -> int:
    return holds.size if holds.all() else int(holds.argmin())


def _rise(values: Float64, i: int, j: int) -> float:
    return float(values[j] - values[i]) / (j - i)


def _lengths(admitted: Int64, requests: int) -> Int32:
    return np.bincount(admitted, minlength=requests).astype(np.int32)
