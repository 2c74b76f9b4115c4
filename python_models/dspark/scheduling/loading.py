"""The costs that a deployment schedules by, or none where it may do without."""

from __future__ import annotations

import logging

from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling.curve import ThroughputCurve

log = logging.getLogger("dspark")


def load_costs(folder: EngineFolder, gamma: int, allow_unprofiled: bool, threads: int = 0) -> ThroughputCurve | None:
    """The folder's throughput curve for a target with so many threads (0: all cores).

    Where there is none that can be used, None with `allow_unprofiled`, else ConfigurationError.
    """
    try:
        curve = ThroughputCurve.read(folder, gamma, threads)
    except ConfigurationError as error:
        if not allow_unprofiled:
            raise ConfigurationError(f"{error}, or do without a curve by --allow-unprofiled") from error
        log.warning("serving without a throughput curve: %s", error)
        return None
    if not curve.stable:
        log.warning("the throughput curve in %s was measured while times varied; run 'dspark profile' again "
                    "while the machine does nothing else", folder.root)
    return curve
