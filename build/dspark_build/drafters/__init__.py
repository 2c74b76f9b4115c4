"""Drafter checkpoints in the published form: read, written, initialised."""

from dspark_build.drafters.checkpoint import load_drafter_checkpoint, read_drafter_config, save_drafter_checkpoint
from dspark_build.drafters.initial import find_mask_token, initialise_drafter

__all__ = [
    "find_mask_token",
    "initialise_drafter",
    "load_drafter_checkpoint",
    "read_drafter_config",
    "save_drafter_checkpoint",
]
