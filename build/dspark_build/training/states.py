"""State shards: the target's hidden states for a response shard, memory-mapped.

For shard NNNNN: `taps-NNNNN.npy` [rows, m·d] and `last-NNNNN.npy` [rows, d] in float16, `log_z-NNNNN.npy` [rows] in
float32, and `states-NNNNN.json`, which is written last and says that the shard is whole. Rows follow the tokens of the
response shard. `last` is the input of lm_head, `log_z` the log of its softmax's denominator over the whole vocabulary,
so that p^t of any token is one scalar product away (dspark-spec, section 3); NaN where nothing is predicted.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dspark.errors import ConfigurationError

ARRAYS = ("taps", "last", "log_z")
FLOAT16_BYTES, FLOAT32_BYTES = 2, 4
FLOAT16_LIMIT = 65504.0              # states beyond it are cut


@dataclass(frozen=True)
class StateSource:
    """What the states were computed from; shards of different targets are not mixed."""

    tap_ids: tuple[int, ...]
    hidden_size: int
    checkpoint: str                  # hash of the target's checkpoint

    def places_of(self, tap_ids: Sequence[int]) -> tuple[int, ...]:
        """Where `tap_ids` stand among the taps. Raises ConfigurationError naming the tap that is not there."""
        for tap in tap_ids:
            if tap not in self.tap_ids:
                raise ConfigurationError(f"tap {tap} was not cached: the states hold the taps {list(self.tap_ids)}")
        return tuple(self.tap_ids.index(tap) for tap in tap_ids)

    @property
    def bytes_per_row(self) -> int:
        return (len(self.tap_ids) + 1) * self.hidden_size * FLOAT16_BYTES + FLOAT32_BYTES


@dataclass(frozen=True)
class States:
    """The arrays of one shard, mapped from disk."""

    taps: npt.NDArray[np.float16]    # [rows, m * d]
    last: npt.NDArray[np.float16]    # [rows, d]
    log_z: npt.NDArray[np.float32]   # [rows]
    source: StateSource


def array_path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:05d}.npy"


def manifest_path(folder: Path, number: int) -> Path:
    return folder / f"states-{number:05d}.json"


def free_bytes(folder: Path) -> int:
    """What the disk under `folder`, which is made, has left."""
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free


def check_room(folder: Path, rows: int, source: StateSource) -> None:
    """Raises ConfigurationError when the disk cannot hold the states of so many tokens."""
    needed, free = rows * source.bytes_per_row, free_bytes(folder)
    if needed > free:
        raise ConfigurationError(
            f"the states of {rows} tokens take {needed / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB free; "
            "free some, generate fewer responses or tap fewer layers"
        )


def create_states(folder: Path, number: int, rows: int, source: StateSource) -> States:
    """Writable arrays on disk for one shard. Raises OSError when the disk is full."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest_path(folder, number).unlink(missing_ok=True)

    def create(name: str, dtype: type, *shape: int) -> npt.NDArray[Any]:
        path = array_path(folder, name, number)
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        with path.open("r+b") as file:           # a mapped page without a place on disk would kill the process
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array

    return States(
        taps=create("taps", np.float16, rows, len(source.tap_ids) * source.hidden_size),
        last=create("last", np.float16, rows, source.hidden_size),
        log_z=create("log_z", np.float32, rows),
        source=source,
    )


def seal_states(folder: Path, number: int, states: States) -> None:
    """Declare the arrays of a shard complete, with their checksums."""
    for array in (states.taps, states.last, states.log_z):
        array.flush()                # type: ignore[attr-defined]
    checksums = {name: _checksum(array_path(folder, name, number)) for name in ARRAYS}
    path = manifest_path(folder, number)
    unfinished = path.with_suffix(".unfinished")
    manifest = {"rows": len(states.log_z), "source": asdict(states.source), "crc32": checksums}
    unfinished.write_text(json.dumps(manifest) + "\n")
    os.replace(unfinished, path)


def is_sealed(folder: Path, number: int) -> bool:
    return manifest_path(folder, number).is_file()


def read_states(folder: Path, number: int, rows: int, source: StateSource) -> States:
    """Map one shard for reading; it may hold more taps than `source` asks for.

    Raises ConfigurationError when it is missing, damaged, of other length than its response shard, computed from
    another target or without one of the taps.
    """
    path = manifest_path(folder, number)
    advice = f"delete {path} and run the cache stage again"
    try:
        manifest = json.loads(path.read_text("utf-8"))
        stored = StateSource(**(manifest["source"] | {"tap_ids": tuple(manifest["source"]["tap_ids"])}))
        if (stored.checkpoint, stored.hidden_size) != (source.checkpoint, source.hidden_size):
            raise ConfigurationError(f"state shard {path} was computed from {stored}, expected {source}; {advice}")
        stored.places_of(source.tap_ids)
        for name in ARRAYS:
            if _checksum(array_path(folder, name, number)) != manifest["crc32"][name]:
                raise ConfigurationError(f"state shard {array_path(folder, name, number)} is damaged; {advice}")
        arrays = {name: np.load(array_path(folder, name, number), mmap_mode="r") for name in ARRAYS}
        states = States(**arrays, source=stored)
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
