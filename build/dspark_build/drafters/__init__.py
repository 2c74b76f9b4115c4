"""Drafter checkpoints in the published form, and the baseline's: read, written, initialised."""

from dspark_build.drafters.checkpoint import load_drafter_checkpoint, read_drafter_config, save_drafter_checkpoint
from dspark_build.drafters.draft_vocabulary import reduce_vocabulary
from dspark_build.drafters.eagle import (
    initialise_eagle,
    load_any_drafter,
    load_eagle_checkpoint,
    save_any_drafter,
)
from dspark_build.drafters.feature_head import load_feature_head
from dspark_build.drafters.initial import find_mask_token, initialise_drafter

__all__ = [
    "find_mask_token",
    "initialise_drafter",
    "initialise_eagle",
    "load_any_drafter",
    "load_drafter_checkpoint",
    "load_eagle_checkpoint",
    "load_feature_head",
    "read_drafter_config",
    "reduce_vocabulary",
    "save_any_drafter",
    "save_drafter_checkpoint",
]
