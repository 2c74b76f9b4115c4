"""The one form of a checkpoint folder: what every later step reads, whatever the weights came from."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` when the context ends without an error.

    So a folder that exists is complete, and what an interrupted run left behind is started afresh.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def copy_tokenizer(checkpoint: Path, out: Path) -> None:
    """Put what a server needs to read and write text into `out`, which is replaced as a whole."""
    with new_folder(out) as folder:
        for name in (TOKENIZER, CHAT_TEMPLATE, GENERATION_CONFIG):
            if (checkpoint / name).is_file():
                shutil.copyfile(checkpoint / name, folder / name)


def checkpoint_hash(folder: Path) -> str:
    """sha256 over config.json and all weight files, which identifies what an engine was built from."""
    digest = hashlib.sha256()
    for path in [folder / CONFIG, *safetensors_files(folder)]:
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()
