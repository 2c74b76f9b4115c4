"""The one form of a checkpoint folder: what every later step reads, whatever the weights came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dspark_build.models.weights import safetensors_files

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_generation_config(folder: Path, bos_token_id: int | None, eos_token_ids: Sequence[int]) -> None:
    """Say which tokens begin and end a text; the first eos id is the one that ends a chat turn."""
    write_json(folder / GENERATION_CONFIG, {"bos_token_id": bos_token_id, "eos_token_id": list(eos_token_ids)})


def checkpoint_hash(folder: Path) -> str:
    """sha256 over config.json and all weight files, which identifies what an engine was built from."""
    digest = hashlib.sha256()
    for path in [folder / CONFIG, *safetensors_files(folder)]:
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()
