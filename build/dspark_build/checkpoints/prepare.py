"""One entry for every kind of source a checkpoint can have."""

from __future__ import annotations

import re
from pathlib import Path

from dspark.errors import ConfigurationError

from dspark_build.checkpoints import default
from dspark_build.checkpoints.hub import download
from dspark_build.checkpoints.local import prepare_local
from dspark_build.progress import Progress, silent

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def prepare(source: str, home: Path, progress: Progress = silent) -> Path:
    """The checkpoint under `home` for the default model's name, a prepared name, a local folder or a hub name.

    What exists is neither downloaded nor converted again. Raises ConfigurationError (see the single kinds).
    """
    if source == default.NAME:
        return default.prepare_default(home, progress)
    if Path(source).is_dir():
        return prepare_local(Path(source), home)
    if (home / "checkpoints" / source / "config.json").is_file():
        return home / "checkpoints" / source
    if HUB_NAME.fullmatch(source):
        name = source.split("/")[1]
        return prepare_local(download(source, home), home, name)
    raise ConfigurationError(
        f"{source!r} is no checkpoint: give {default.NAME}, a folder with config.json and safetensors, or a hub name"
    )
