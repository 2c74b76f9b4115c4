"""Where things lie: the repository, DSPARK_HOME and what is inside it (docs/structure.md)."""

from __future__ import annotations

import os
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINES = ("int8", "fp32")
DEFAULT_CHECKPOINT = "smollm2-135m-instruct"


def home() -> Path:
    """DSPARK_HOME, or `.dspark` in the repository."""
    return Path(os.environ.get("DSPARK_HOME") or REPOSITORY / ".dspark")


def model_repository() -> Path:
    """The Triton model repository of this checkout. Raises ConfigurationError where there is none."""
    folder = REPOSITORY / "model_repository"
    if not (folder / "dspark" / "config.pbtxt").is_file():
        raise ConfigurationError(f"no model repository at {folder}: install from a checkout with 'make setup'")
    return folder


def prepared_checkpoint(name: str) -> Path:
    """The folder of a prepared target. Raises ConfigurationError where there is none."""
    folder = home() / "checkpoints" / name
    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"no checkpoint {folder}: run 'dspark prepare {name}' first")
    return folder


def engine_folder(checkpoint: str, engine: str) -> EngineFolder:
    """The folder of a built engine. Raises ConfigurationError for an unknown engine name."""
    if engine not in ENGINES:
        raise ConfigurationError(f"unknown engine {engine!r}: choose {' or '.join(ENGINES)}")
    return EngineFolder(home() / "engines" / checkpoint / engine)
