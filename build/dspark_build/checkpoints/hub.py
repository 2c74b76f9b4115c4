"""Models by name from the Hugging Face hub, where its client is installed and the hub can be reached."""

from __future__ import annotations

from pathlib import Path

from dspark.errors import ConfigurationError

PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def download(name: str, home: Path) -> Path:
    """The files of the hub's model `name` ("org/name") under `home`; an interrupted download is resumed.

    Raises ConfigurationError when huggingface_hub is not installed, or the hub or the model cannot be reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigurationError(
            f"{name} is a hub name, but huggingface_hub is not installed: install it, or give a local folder"
        ) from error
    folder = home / "downloads" / name.replace("/", "--")
    try:
        snapshot_download(name, local_dir=folder, allow_patterns=PATTERNS)
    except Exception as error:  # the client raises errors of several HTTP libraries
        raise ConfigurationError(
            f"{name} cannot be downloaded ({type(error).__name__}: {error}); download it elsewhere and give its folder"
        ) from error
    return folder
