"""calibration.json: the STS temperatures that a `dspark calibrate` run left beside a drafter."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspark.engines.engine_json import ENGINE_JSON, REBUILD
from dspark.errors import ConfigurationError
from dspark.scheduling.confidence import Float64

CALIBRATION_FILE = "calibration.json"
CALIBRATE = "run 'dspark calibrate'"


@dataclass(frozen=True)
class CalibratedPosition:
    """One position of a block; errors and AUC are those of the held-out rounds, None where there were none."""

    temperature: float               # T_k
    ece_before: float | None         # expected calibration error of a_k, uncalibrated
    ece_after: float | None
    auc: float | None                # ROC-AUC of the calibrated a_k; None also where all or none survived
    count: int                       # held-out rounds whose draft at this position was verified
    ece_after_by_temperature: Mapping[str, float | None]             # of the requests of one temperature alone


@dataclass(frozen=True)
class CalibrationData:
    """What a calibration comes from."""

    datasets: Mapping[str, int]      # prompts of each
    fit_prompts: int
    fit_rounds: int
    held_out_prompts: int
    held_out_rounds: int
    max_tokens: int
    seed: int
    engine: str


@dataclass(frozen=True)
class CalibrationRecord:
    """The content of calibration.json."""

    drafter: str                     # drafter_fingerprint
    created: str                     # ISO 8601
    temperatures: tuple[float, ...]  # of the requests, as served; not those of STS
    data: CalibrationData
    positions: tuple[CalibratedPosition, ...]

    def write(self, folder: Path) -> Path:
        """Write `folder`/calibration.json, whole or not at all. Raises ConfigurationError."""
        path = folder / CALIBRATION_FILE
        unfinished = path.with_suffix(".tmp")
        try:
            unfinished.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", "utf-8")
            os.replace(unfinished, path)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error}") from error
        return path


@dataclass(frozen=True)
class Calibration:
    """Sequential temperature scaling of a drafter's confidence (dspark-spec, section 4)."""

    temperatures: Float64            # [gamma]

    @staticmethod
    def read(folder: Path, gamma: int) -> Calibration | None:
        """Read `folder`/calibration.json, {"positions": [{"temperature": T_k, ..}, ..]}; None where there is none.

        Raises ConfigurationError for a file that cannot be understood, is not of gamma positions, or names another
        drafter than the one in the folder.
        """
        path = folder / CALIBRATION_FILE
        if not path.is_file():
            return None
        try:
            document: Any = json.loads(path.read_text("utf-8"))
            temperatures = [float(position["temperature"]) for position in document["positions"]]
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise ConfigurationError(
                f'{path} cannot be read: expected {{"positions": [{{"temperature": number}}, ..]}} ({error!r}); '
                f"{CALIBRATE} again or remove the file"
            ) from error
        if "drafter" in document and document["drafter"] != drafter_fingerprint(folder):
            raise ConfigurationError(
                f"{path} was made with another drafter than the one in {folder}, whose confidence it does not fit; "
                f"{CALIBRATE} again or remove the file"
            )
        if len(temperatures) != gamma:
            raise ConfigurationError(
                f"{path} is of {len(temperatures)} positions, the drafter has {gamma}; {CALIBRATE} again"
            )
        if not all(math.isfinite(temperature) and temperature > 0 for temperature in temperatures):
            raise ConfigurationError(f"{path}: temperatures must be finite and positive, not {temperatures}")
        return Calibration(np.array(temperatures))


def drafter_fingerprint(folder: Path) -> str:
    """The sha256 of a drafter's engine.json, which identifies a built drafter. Raises ConfigurationError."""
    try:
        return hashlib.sha256((folder / ENGINE_JSON).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigurationError(f"{folder / ENGINE_JSON} cannot be read ({error}); {REBUILD}") from error
