"""Response shards: what the target itself answered, as token ids; `responses-NNNNN.npz` in one folder."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dspark.engines.contract import Float32, Int32
from dspark.errors import ConfigurationError

PREFIX = "responses-"


@dataclass(frozen=True)
class Responses:
    """S sequences of one shard, each prompt + response."""

    tokens: Int32                    # [sum(lengths)] sequence after sequence
    lengths: Int32                   # [S] tokens of prompt + response
    prompt_lengths: Int32            # [S]
    temperatures: Float32            # [S] that the response was sampled at; 0 is greedy
    samples: Int32                   # [S] number of the response among those of its prompt
    ids: npt.NDArray[np.str_]        # [S] prompt ids
    domains: npt.NDArray[np.str_]    # [S]

    @property
    def response_tokens(self) -> int:
        return int(self.lengths.sum() - self.prompt_lengths.sum())

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Row of each sequence's first token [S]."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"{PREFIX}{number:05d}.npz"


def shard_numbers(folder: Path) -> list[int]:
    """The numbers of the shards in `folder`, rising."""
    return sorted(int(path.stem.removeprefix(PREFIX)) for path in folder.glob(f"{PREFIX}*.npz"))


def write_responses(folder: Path, number: int, responses: Responses) -> None:
    """Write one shard; an interruption leaves either the whole shard or none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = shard_path(folder, number)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, **{field.name: getattr(responses, field.name) for field in fields(Responses)})
    os.replace(unfinished, path)


def read_responses(folder: Path, number: int) -> Responses:
    """Read one shard. Raises ConfigurationError when it is missing, damaged or contradicts itself."""
    path = shard_path(folder, number)
    try:
        with np.load(path, allow_pickle=False) as stored:
            responses = Responses(**{field.name: stored[field.name] for field in fields(Responses)})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(
            f"response shard {path} is damaged ({error}); delete it and generate again: its prompts are answered anew"
        ) from error
    if responses.lengths.sum() != len(responses.tokens) or (responses.prompt_lengths >= responses.lengths).any():
        raise ConfigurationError(f"response shard {path} contradicts itself: lengths do not fit its tokens; delete it")
    return responses
