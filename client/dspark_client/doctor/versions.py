"""What is installed: Python, the engine runtimes, Triton."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata

from dspark.errors import ConfigurationError

from dspark_client.doctor.findings import Finding, advised, stopped
from dspark_client.paths import REPOSITORY
from dspark_client.triton import find_triton

NEEDED = ("numpy", "openvino", "tokenizers", "jinja2", "tritonclient", "typer", "rich")
OPTIONAL = ("nvidia-pytriton", "tensorrt", "torch", "onnx", "onnxruntime")
REQUIREMENTS = ("serve.txt", "triton.txt", "build.txt")
SETUP = "run 'make setup'"


def installed_versions() -> dict[str, str | None]:
    """Version by package, None where it is not installed; Python first."""
    return {"python": platform.python_version(), **{name: _version(name) for name in (*NEEDED, *OPTIONAL)}}


def version_findings(versions: dict[str, str | None]) -> list[Finding]:
    """Whether a server can start with what is installed, and whether it is what was tested."""
    asked = required_versions()
    from_wheel = versions["nvidia-pytriton"] is not None
    findings = [Finding("Python", str(versions["python"])), _triton(from_wheel), library_finding(sys.executable)]
    for name in (*NEEDED, *OPTIONAL):
        version, wanted = versions[name], asked.get(name)
        if version is None and name in NEEDED and (name != "openvino" or versions["tensorrt"] is None):
            findings.append(stopped(name, "not installed", SETUP))
        elif version is None:
            continue
        elif name == "numpy" and from_wheel and int(version.split(".")[0]) >= 2:
            findings.append(stopped(name, f"{version}, but the Python backend of this Triton needs numpy 1", SETUP))
        elif wanted not in (None, version.split("+")[0]) and from_wheel:
            findings.append(advised(name, f"{version}, but {wanted} was tested", SETUP))
        else:
            findings.append(Finding(name, version))
    return findings


def required_versions() -> dict[str, str]:
    """The pinned version by package, of the requirement files."""
    found = {}
    for file in REQUIREMENTS:
        path = REPOSITORY / "requirements" / file
        for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
            name, pinned, version = line.split("#")[0].partition("==")
            if pinned:
                found[name.split("[")[0].strip()] = version.strip()
    return found


def library_finding(python: str) -> Finding:
    """Whether Triton's model processes will find the library: they are isolated, which makes PYTHONPATH void."""
    command = [python, "-I", "-c", "import dspark, sys; sys.stdout.write(dspark.__path__[0])"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        place = f"{sys.prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        return stopped(
            "library", "is found by PYTHONPATH alone, which Triton's model processes ignore",
            f"{SETUP}, or name {REPOSITORY / 'python_models'} in a .pth file in {place}",
        )
    return Finding("library", result.stdout)


def _triton(from_wheel: bool) -> Finding:
    try:
        triton = find_triton()
    except ConfigurationError as error:
        return stopped("Triton", "no server that this Python can use", str(error))
    return Finding("Triton", f"{'2.51.0 in the wheel nvidia-pytriton' if from_wheel else 'on PATH'}: {triton.program}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
