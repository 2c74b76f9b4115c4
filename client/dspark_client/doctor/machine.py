"""The machine: CPU, memory, GPUs. (Linux)"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dspark.engines.machine import cpu_model

from dspark_client.doctor.findings import Finding, advised

GIB = 2**30
# /proc/cpuinfo's name, and what it is called elsewhere; those that OpenVINO's and our own kernels differ by
INSTRUCTION_SETS = {
    "avx2": "AVX2", "avx512f": "AVX-512", "avx_vnni": "AVX-VNNI", "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16", "amx_int8": "AMX int8", "amx_bf16": "AMX bf16",
}
GPU_QUERY = ("name", "driver_version", "memory.total", "memory.free", "compute_cap")
GPU_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Gpu:
    """As the driver reports it; memory in GiB."""

    name: str
    driver: str
    memory_gib: float
    free_gib: float
    compute_capability: str


@dataclass(frozen=True)
class Machine:
    """Cores are those that this process may use; memory in GiB, of the container where that is less."""

    cpu: str
    cores: int
    instruction_sets: tuple[str, ...]
    memory_gib: float
    available_gib: float
    gpus: tuple[Gpu, ...]
    gpu_message: str                 # why no GPU is known, or empty


def read_machine(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Machine:
    """What this machine has."""
    flags = _line(proc / "cpuinfo", "flags").split()
    total, available = _memory(proc, cgroup)
    gpus, message = _gpus()
    return Machine(
        cpu_model(), len(os.sched_getaffinity(0)),
        tuple(name for flag, name in INSTRUCTION_SETS.items() if flag in flags), total, available, gpus, message,
    )


def machine_findings(machine: Machine) -> list[Finding]:
    """The machine in words."""
    sets = ", ".join(machine.instruction_sets) or "no AVX2"
    findings = [Finding("CPU", f"{machine.cpu}, {machine.cores} cores, {sets}")]
    if not machine.instruction_sets:
        findings = [advised("CPU", findings[0].found, "expect slow steps: OpenVINO's kernels want AVX2 at least")]
    findings.append(Finding("memory", f"{machine.available_gib:.1f} of {machine.memory_gib:.1f} GiB available"))
    for gpu in machine.gpus:
        about = f"{gpu.name}, driver {gpu.driver}, compute capability {gpu.compute_capability}"
        findings.append(Finding("GPU", f"{about}, {gpu.free_gib:.1f} of {gpu.memory_gib:.1f} GiB free"))
    if not machine.gpus:
        findings.append(Finding("GPU", machine.gpu_message))
    return findings


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's CSV without header and units. Raises ValueError where it is of another form."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]
    if any(len(row) != len(GPU_QUERY) for row in rows):
        raise ValueError(f"nvidia-smi printed {text!r}")
    return tuple(
        Gpu(name, driver, float(total) / 1024, float(free) / 1024, capability)
        for name, driver, total, free, capability in rows
    )


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    if shutil.which("nvidia-smi") is None:
        return (), "none (no nvidia-smi)"
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=True)
        return parse_gpus(result.stdout), ""
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return (), f"none that nvidia-smi can tell of ({error})"


def _line(path: Path, name: str) -> str:
    """The value of the first line `name : value`; empty where there is none."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == name), "")


def _memory(proc: Path, cgroup: Path) -> tuple[float, float]:
    """Total and available memory in GiB, at most what the container is given."""
    total, available = (
        float((_line(proc / "meminfo", name).split() or ["0"])[0]) * 1024 / GIB
        for name in ("MemTotal", "MemAvailable")
    )
    try:
        limit = int((cgroup / "memory.max").read_text("utf-8")) / GIB
        used = int((cgroup / "memory.current").read_text("utf-8")) / GIB
    except (OSError, ValueError):        # no container, or "max"
        return total, available
    return min(total, limit), min(available, max(0.0, limit - used))
