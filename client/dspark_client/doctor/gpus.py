"""Memory of GPUs by name, for plans made without one: what nvidia-smi calls their total, with ECC where it is usual."""

from __future__ import annotations

from dspark.errors import ConfigurationError

from dspark_client.doctor.machine import read_machine

MEBIBYTES = {
    "T4": 15360, "L4": 23034, "A10": 23028, "L40S": 46068, "RTX3090": 24576, "RTX4090": 24564, "RTX5090": 32607,
    "A100-40GB": 40960, "A100-80GB": 81920, "H100": 81559, "H200": 143771, "B200": 183359,
}


def gpu_memory_gib(name: str | None) -> tuple[str, float]:
    """Name and GiB of a GPU: the one named, or else the first of this machine. Raises ConfigurationError."""
    if name is None:
        gpus = read_machine().gpus
        if not gpus:
            raise ConfigurationError(f"no GPU here: name one with --gpu ({', '.join(MEBIBYTES)}), or give --gpu-memory")
        return gpus[0].name, gpus[0].memory_gib
    wanted = name.upper().replace(" ", "")
    for known, mebibytes in MEBIBYTES.items():
        if known.upper() == wanted:
            return known, mebibytes / 1024
    raise ConfigurationError(f"GPU {name!r} is not in the table ({', '.join(MEBIBYTES)}): give its --gpu-memory in GiB")
