"""A drafter's checkpoint folder in any of three packagings, read in the published form (DeepSpec's)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dspark_build.checkpoints.form import CONFIG
from dspark_build.drafters import specforge, speculators
from dspark_build.models.config import read_json
from dspark_build.models.weights import read_tensors


@dataclass(frozen=True)
class DrafterFolder:
    """What a folder holds, by the published names."""

    path: Path
    source: str                      # config.json and its packaging, for messages
    fields: Mapping[str, Any]        # of config.json
    own_name: Callable[[str], str | None]   # a stored tensor's name -> its published one; None: not needed
    may_borrow: tuple[str, ...]      # tensors that are the target's where they are not stored

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor, one after another: weights as float32. Raises ConfigurationError."""
        for stored, tensor in read_tensors(self.path):
            name = self.own_name(stored)
            if name is not None:
                yield name, tensor


def open_drafter(folder: Path) -> DrafterFolder:
    """Recognise the packaging and translate config.json; raises ConfigurationError naming a field that has no meaning.

    What `parse_drafter_config` checks is not checked here.
    """
    path = folder / CONFIG
    fields = read_json(path)
    if speculators.MARK in fields:
        source = f"{path} ({speculators.NOTE})"
        translated = speculators.translate_fields(fields, source)
        may_borrow = speculators.left_to_the_target(translated)
        return DrafterFolder(folder, source, translated, speculators.translate_name, may_borrow)
    if specforge.MARK in fields or fields.get("architectures") == [specforge.ARCHITECTURE]:
        source = f"{path} ({specforge.NOTE})"
        translated = specforge.translate_fields(fields, source)
        return DrafterFolder(folder, source, translated, specforge.translate_name, specforge.LEFT_TO_THE_TARGET)
    return DrafterFolder(folder, str(path), fields, str, ())
