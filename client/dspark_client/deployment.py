"""What a server is asked to run: settings for a built engine, and whether they fit it, known before Triton starts."""

from __future__ import annotations

from pathlib import Path

from dspark.deployment import check_policy
from dspark.engines.contract import EngineFolder
from dspark.engines.loading import read_drafter_limits, read_target_limits
from dspark.errors import ConfigurationError
from dspark.settings import ServingSettings

from dspark_client import paths


def serving_settings(checkpoint: str, engine: str, policy: str = ServingSettings.policy) -> ServingSettings:
    """The defaults of a deployment, for one engine. Raises ConfigurationError for an unknown engine name."""
    return ServingSettings(str(paths.engine_folder(checkpoint, engine).root), policy)


def check_deployment(settings: ServingSettings) -> None:
    """Raises ConfigurationError when the engine folder is not complete or the policy does not fit its drafter."""
    folder = EngineFolder(Path(settings.engine_folder))
    for part in (folder.target, folder.drafter, folder.tokenizer):
        if not part.is_dir():
            raise ConfigurationError(f"{part} is missing: run 'dspark build --engine {folder.root.name}' first")
    check_policy(settings)


def block_size(folder: EngineFolder) -> int:
    """Draft tokens of one block that both engines can take. Raises ConfigurationError."""
    return min(read_target_limits(folder.target).max_draft_tokens, read_drafter_limits(folder.drafter).block_size)
