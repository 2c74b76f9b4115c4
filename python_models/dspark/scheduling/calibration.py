"""calibration.json: the STS temperatures that a `dspark calibrate` run left beside an engine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspark.errors import ConfigurationError
from dspark.scheduling.confidence import Float64

CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """Sequential temperature scaling of a drafter's confidence (dspark-spec, section 4)."""

    temperatures: Float64            # [gamma]

    @staticmethod
    def read(folder: Path, gamma: int) -> Calibration | None:
        """Read `folder`/calibration.json, {"positions": [{"temperature": T_k, ..}, ..]}; None where there is none.

        Raises ConfigurationError for a file that cannot be understood or is not of gamma positions.
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
                "run 'dspark calibrate' again or remove the file"
            ) from error
        if len(temperatures) != gamma:
            raise ConfigurationError(
                f"{path} is of {len(temperatures)} positions, the drafter has {gamma}; run 'dspark calibrate' again"
            )
        if not all(math.isfinite(temperature) and temperature > 0 for temperature in temperatures):
            raise ConfigurationError(f"{path}: temperatures must be finite and positive, not {temperatures}")
        return Calibration(np.array(temperatures))
