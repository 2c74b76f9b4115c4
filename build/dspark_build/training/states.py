"""State shards: the target's hidden states for a response shard, memory-mapped.

For shard NNNNN: `taps-NNNNN.npy` [rows, m·d] and `last-NNNNN.npy` [rows, d] in float16, `log_z-NNNNN.npy` [rows] in
float32, and `states-NNNNN.json`, which is written last and says that the shard is whole. Rows follow the tokens of the
response shard. `last` is the input of lm_head, `log_z` the log of its softmax's denominator over the whole vocabulary,
so that p^t of any token is one scalar product away (dspark-spec, section 3); NaN where nothing is predicted.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dspark.errors import ConfigurationError

ARRAYS = ("taps", "last", "log_z")
FLOAT16_BYTES, FLOAT32_BYTES = 2, 4


@dataclass(frozen=True)
class StateSource:
    """What the states were computed from; shards of different sources are not mixed."""

    tap_ids: tuple[int, ...]
    hidden_size: int
    checkpoint: str                  # hash of the target's checkpoint

    @property
    def bytes_per_row(self) -> int:
        return (len(self.tap_ids) + 1) * self.hidden_size * FLOAT16_BYTES + FLOAT32_BYTES


@dataclass(frozen=True)
class States:
    """The arrays of one shard, mapped from disk."""

    taps: npt.NDArray[np.float16]    # [rows, m * d]
    last: npt.NDArray[np.float16]    # [rows, d]
    log_z: npt.NDArray[np.float32]   # [rows]


def array_path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:05d}.npy"


def manifest_path(folder: Path, number: int) -> Path:
    return folder / f"states-{number:05d}.json"


def create_states(folder: Path, number: int, rows: int, source: StateSource) -> States:
    """Writable arrays on disk for one shard. Raises OSError when the disk is full."""
    folder.mkdir(parents=True, exist_ok=True)

    def create(name: str, dtype: type, *shape: int) -> npt.NDArray[Any]:
        return np.lib.format.open_memmap(array_path(folder, name, number), mode="w+", dtype=dtype, shape=shape)

    return States(
        taps=create("taps", np.float16, rows, len(source.tap_ids) * source.hidden_size),
        last=create("last", np.float16, rows, source.hidden_size),
        log_z=create("log_z", np.float32, rows),
    )


def seal_states(folder: Path, number: int, rows: int, source: StateSource) -> None:
    """Declare the arrays of a shard complete, with their checksums."""
    checksums = {name: _checksum(array_path(folder, name, number)) for name in ARRAYS}
    path = manifest_path(folder, number)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"rows": rows, "source": asdict(source), "crc32": checksums}) + "\n")
    os.replace(unfinished, path)


def is_sealed(folder: Path, number: int) -> bool:
    return manifest_path(folder, number).is_file()


def read_states(folder: Path, number: int, rows: int, source: StateSource) -> States:
    """Map one shard for reading.

    Raises ConfigurationError when it is missing, damaged, of other length than its response shard or computed from
    another source.
    """
    path = manifest_path(folder, number)
    advice = f"delete {path} and run the cache stage again"
    try:
        manifest = json.loads(path.read_text("utf-8"))
        stored = StateSource(**(manifest["source"] | {"tap_ids": tuple(manifest["source"]["tap_ids"])}))
        if stored != source:
            raise ConfigurationError(f"state shard {path} was computed from {stored}, expected {source}; {advice}")
        for name in ARRAYS:
            if _checksum(array_path(folder, name, number)) != manifest["crc32"][name]:
                raise ConfigurationError(f"state shard {array_path(folder, name, number)} is damaged; {advice}")
        states = States(**{name: np.load(array_path(folder, name, number), mmap_mode="r") for name in ARRAYS})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"state shard {path} cannot be read ({error}); {advice}") from error
    if not rows == manifest["rows"] == len(states.taps) == len(states.last) == len(states.log_z):
        raise ConfigurationError(f"state shard {path} has {manifest['rows']} rows, its responses have {rows}; {advice}")
    return states


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            value = zlib.crc32(chunk, value)
    return value
