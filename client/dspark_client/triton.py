"""Finding a Triton server for this Python, and the command line that starts it."""

from __future__ import annotations

import filecmp
import importlib.util
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dspark.errors import ConfigurationError

from dspark_client.ports import Ports

STUB = "triton_python_backend_stub"
EXIT_TIMEOUT_S = 3         # what Triton itself grants to requests in flight when it is told to stop


@dataclass(frozen=True)
class Triton:
    """An installed server: its program, the options that depend on where it lies, and its environment."""

    program: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, repository: Path, host: str, ports: Ports, shared_memory_prefix: str) -> list[str]:
        return [
            str(self.program), *self.options,
            f"--model-repository={repository}",
            f"--http-address={host}", f"--http-port={ports.http}",
            f"--grpc-address={host}", f"--grpc-port={ports.grpc}",
            f"--metrics-address={host}", f"--metrics-port={ports.metrics}",
            f"--backend-config=python,shm-region-prefix-name={shared_memory_prefix}",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        ]


def find_triton() -> Triton:
    """The server in the nvidia-pytriton wheel, or `tritonserver` on PATH (NVIDIA's container).

    Raises ConfigurationError when there is none, or when this Python cannot host its models.
    """
    spec = importlib.util.find_spec("pytriton")       # located, not imported: only its binaries are used
    if spec is not None and spec.origin is not None:
        return _from_wheel(Path(spec.origin).parent / "tritonserver")
    on_path = shutil.which("tritonserver")
    if on_path is None:
        raise ConfigurationError("no Triton server: run 'make setup', which installs one, or use NVIDIA's container")
    return Triton(Path(on_path), environment=_environment(os.environ.get("LD_LIBRARY_PATH", "")))


def _from_wheel(root: Path) -> Triton:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        raise ConfigurationError(f"the Triton wheel has no model process for Python {version}: use Python 3.10 to 3.13")
    library = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    shared_object = sysconfig.get_config_var("INSTSONAME") or ""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise ConfigurationError(
            f"{sys.executable} was built without libpython{version}.so, which Triton's model processes load: "
            f"use a Python built with --enable-shared (found: {shared_object})"
        )
    _install(stub, root / "backends" / "python" / STUB)
    search = os.pathsep.join(filter(None, (str(library), os.environ.get("LD_LIBRARY_PATH", ""))))
    options = (f"--backend-directory={root / 'backends'}", f"--cache-directory={root / 'caches'}")
    return Triton(root / "bin" / "tritonserver", options, _environment(search))


def _install(stub: Path, place: Path) -> None:
    """Put the stub beside its backend. Several servers may start at once, so it appears whole or not at all."""
    if place.is_file() and filecmp.cmp(stub, place, shallow=False) and os.access(place, os.X_OK):
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{STUB}-")
        os.close(handle)
        shutil.copyfile(stub, temporary)
        os.chmod(temporary, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        os.replace(temporary, place)
    except OSError as error:
        raise ConfigurationError(f"cannot put Triton's model process at {place}: {error}") from error


def _environment(library_path: str) -> dict[str, str]:
    """The model processes find this virtual environment, in which the library is installed, through PATH."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": library_path,
        "PATH": os.pathsep.join((str(Path(sys.prefix) / "bin"), os.environ.get("PATH", ""))),
        "PYTHONUTF8": "1",                            # an embedded Python takes a C locale literally: ASCII
    }
