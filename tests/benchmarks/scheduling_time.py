"""Times of the length rules and of a whole plan: `python tests/benchmarks/scheduling_time.py` prints medians in us."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from dspark.scheduling import Batch, allocate, causal_greedy, make_policy, marginal_gain, stale_budget

GAMMA, REPEATS = 7, 200


class Costs:
    def target_seconds(self, sequences, tokens, context):
        return 0.01 + 1e-4 * tokens

    def drafter_seconds(self, sequences):
        return 2e-3 + 1e-4 * sequences


def median_us(function: Callable[[], object]) -> float:
    def once() -> float:
        started = time.perf_counter()
        function()
        return 1e6 * (time.perf_counter() - started)

    return round(statistics.median(once() for _ in range(REPEATS)), 1)


def measure(requests: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    survival = np.cumprod(random.uniform(0.3, 1.0, (requests, GAMMA)), axis=1)
    limits = np.full(requests, GAMMA, np.int32)
    curve = 1.0 / (0.01 + 1e-4 * np.arange(requests * GAMMA + 1))
    prices = np.linspace(0.1, 0.9, requests * GAMMA)
    policy = make_policy("adaptive+lookup", GAMMA, Costs())
    batch = Batch(
        limits, 0 * limits, survival * (random.uniform(size=(requests, 1)) < 0.3), limits, survival, limits, 100.0
    )
    return {
        "allocate": median_us(lambda: allocate(survival, limits, requests * 3)),
        "causal_greedy": median_us(lambda: causal_greedy(survival, limits, curve)),
        "stale_budget": median_us(lambda: stale_budget(survival, survival, limits, curve)),
        "marginal_gain": median_us(lambda: marginal_gain(survival, limits, prices)),
        "adaptive plan": median_us(lambda: policy.plan(batch)),
    }


if __name__ == "__main__":
    print(json.dumps({f"{requests} x {GAMMA}": measure(requests) for requests in (1, 8, 32, 64, 128, 256)}, indent=1))
