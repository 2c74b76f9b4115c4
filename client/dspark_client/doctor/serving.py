"""Whether one server can start: its engine and policy, its ports, shared memory, memory and disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.errors import ConfigurationError
from dspark.scheduling import Calibration
from dspark.settings import ServingSettings

from dspark_client import paths
from dspark_client.deployment import block_size, check_deployment
from dspark_client.doctor.findings import Finding, advised, stopped
from dspark_client.doctor.machine import GIB, Machine
from dspark_client.ports import Ports, require_free

SHARED_MEMORY = Path("/dev/shm")
LITTLE_SHARED_MEMORY_GIB = 0.25      # containers have 0.06 unless told otherwise
LITTLE_DISK_GIB = 2.0                # a build of the default model takes about one


def serving_findings(settings: ServingSettings, ports: Ports, host: str, machine: Machine) -> list[Finding]:
    """What `dspark serve` with these settings would meet."""
    return [_engine(settings), _ports(ports, host), _shared_memory(), _disk(), *_memory(settings, machine)]


def _engine(settings: ServingSettings) -> Finding:
    folder = EngineFolder(Path(settings.engine_folder))
    about = f"serve {folder.root.parent.name}/{folder.root.name}"
    try:
        check_deployment(settings)
        Calibration.read(folder.drafter, block_size(folder))
    except ConfigurationError as error:
        return stopped(about, f"policy {settings.policy} cannot start", str(error))
    return Finding(about, f"policy {settings.policy} can start")


def _ports(ports: Ports, host: str) -> Finding:
    try:
        require_free(ports, host)
    except ConfigurationError as error:
        return stopped("ports", "not all free", str(error))
    return Finding("ports", f"{ports.http}, {ports.grpc} and {ports.metrics} on {host} are free")


def _shared_memory() -> Finding:
    if not os.access(SHARED_MEMORY, os.W_OK):
        return stopped("shared memory", f"{SHARED_MEMORY} cannot be written", "Triton's model processes need it")
    free = shutil.disk_usage(SHARED_MEMORY).free / GIB
    found = f"{free:.2f} GiB free in {SHARED_MEMORY}"
    if free < LITTLE_SHARED_MEMORY_GIB:
        return advised("shared memory", found, "start the container with --shm-size 1g, or remount it larger")
    return Finding("shared memory", found)


def _disk() -> Finding:
    home = paths.home()
    existing = next(folder for folder in (home, *home.resolve().parents) if folder.is_dir())
    if not os.access(existing, os.W_OK):
        return stopped("disk", f"{existing} cannot be written", "set DSPARK_HOME to where servers can keep their logs")
    free = shutil.disk_usage(existing).free / GIB
    if free < LITTLE_DISK_GIB:
        return advised("disk", f"{free:.1f} GiB free in {home}", f"builds want {LITTLE_DISK_GIB:.0f} GiB and more")
    return Finding("disk", f"{free:.1f} GiB free in {home}")


def _memory(settings: ServingSettings, machine: Machine) -> list[Finding]:
    size = sum(path.stat().st_size for path in Path(settings.engine_folder).rglob("*") if path.is_file()) / GIB
    if size <= machine.available_gib:
        return []
    found = f"the engine is {size:.1f} GiB, {machine.available_gib:.1f} GiB are available"
    return [advised("memory", found, "end other programs, or serve a smaller engine")]
