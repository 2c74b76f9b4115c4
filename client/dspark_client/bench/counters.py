"""How a server's own counters grow during a load: what clients cannot see of its rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark_client.metrics import read_metrics

METRICS_TIMEOUT_S = 10.0
FLUSHED_S = 1.0                      # the server's counters follow its rounds after a quarter of a second
ROUNDS, SEQUENCES = "dspark_rounds_total", "dspark_round_sequences_total"
HOST_SECONDS = "dspark_host_seconds_total"
CALL_SECONDS = ("dspark_draft_seconds_total", "dspark_verify_seconds_total")
ENGINES = ("drafter", "target")
ENGINE_MICROSECONDS = "nv_inference_compute_infer_duration_us"


@dataclass(frozen=True)
class Counters:
    """Over one load; seconds are sums over its rounds."""

    rounds: float
    sequences: float                 # in target steps, summed over rounds
    host_s: float                    # of the rounds' time, what is neither the draft's nor the verification's call
    calls_s: float                   # of those calls' time, what the engines' models did not spend executing


class CounterReading:
    """The counters as they are now, to compare with later. Raises OSError where the server gives none."""

    def __init__(self, metrics_address: str) -> None:
        self._address = metrics_address
        self._before = _read(metrics_address)

    def growth(self) -> Counters:
        """What has been added since, once the server has written everything down."""
        time.sleep(FLUSHED_S)
        return Counters(*(_read(self._address) - self._before).tolist())


def _read(metrics_address: str) -> npt.NDArray[np.float64]:
    values = read_metrics(metrics_address, METRICS_TIMEOUT_S)
    engines_us = sum(
        read_metrics(metrics_address, METRICS_TIMEOUT_S, model=engine).get(ENGINE_MICROSECONDS, 0.0)
        for engine in ENGINES
    )
    calls_s = sum(values.get(name, 0.0) for name in CALL_SECONDS)
    own = [values.get(name, 0.0) for name in (ROUNDS, SEQUENCES, HOST_SECONDS)]
    return np.array([*own, calls_s - 1e-6 * engines_us])
