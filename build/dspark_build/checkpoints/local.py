"""A Hugging Face folder with Llama or Qwen3 weights, checked and brought into the project's form."""

from __future__ import annotations

import shutil
from pathlib import Path

from dspark.errors import ConfigurationError
from safetensors import SafetensorError, safe_open

from dspark_build.checkpoints.form import (
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    new_folder,
    write_generation_config,
)
from dspark_build.models.config import ModelConfig, read_json
from dspark_build.models.target import Target
from dspark_build.models.weights import check_shapes, safetensors_files

INDEX = "model.safetensors.index.json"


def prepare_local(source: Path, home: Path, name: str | None = None) -> Path:
    """The checkpoint under `home` that stands for the folder `source`; its weights are linked, not copied.

    Raises ConfigurationError when a file is missing, the architecture is not supported, tensors do not fit it, or
    another checkpoint of that name exists.
    """
    source = source.resolve()
    folder = home / "checkpoints" / (name or source.name).lower()
    if folder.is_dir():
        if safetensors_files(folder)[0].resolve() not in safetensors_files(source):
            raise ConfigurationError(f"{folder} was prepared from another folder than {source}; remove it first")
        return folder
    check_weights(source)
    if not (source / TOKENIZER).is_file():
        raise ConfigurationError(f"{source} has no {TOKENIZER}; save it with the tokenizers library")
    with new_folder(folder) as partial:
        for path in [*safetensors_files(source), source / INDEX]:
            if path.is_file():
                (partial / path.name).symlink_to(path)
        for name in (CONFIG, TOKENIZER):
            shutil.copyfile(source / name, partial / name)
        _write_chat_template(source, partial)
        _write_ends(source, partial)
    return folder


def check_weights(folder: Path) -> None:
    """Raise ConfigurationError unless the weight files hold exactly the tensors that config.json implies.

    Only the files' headers are read.
    """
    target = Target.on_meta(ModelConfig.read(folder))
    shapes: dict[str, list[int]] = {}
    for path in safetensors_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
    check_shapes(target, target.own_names(shapes), str(folder))


def _write_chat_template(source: Path, folder: Path) -> None:
    """Copy the template, which older folders keep in tokenizer_config.json; a base model has none."""
    if (source / CHAT_TEMPLATE).is_file():
        shutil.copyfile(source / CHAT_TEMPLATE, folder / CHAT_TEMPLATE)
        return
    settings = source / "tokenizer_config.json"
    template = read_json(settings).get("chat_template") if settings.is_file() else None
    if isinstance(template, list):               # several named templates
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    if template:
        (folder / CHAT_TEMPLATE).write_text(template, encoding="utf-8")


def _write_ends(source: Path, folder: Path) -> None:
    generation = source / GENERATION_CONFIG
    values = {**read_json(source / CONFIG), **(read_json(generation) if generation.is_file() else {})}
    ends = values.get("eos_token_id")
    ends = [ends] if isinstance(ends, int) else ends
    if not ends or not all(isinstance(end, int) for end in ends):
        raise ConfigurationError(f"{source}: neither {GENERATION_CONFIG} nor {CONFIG} has an eos_token_id")
    write_generation_config(folder, values.get("bos_token_id"), ends)
