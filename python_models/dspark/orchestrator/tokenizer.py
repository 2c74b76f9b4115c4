"""The model's tokenizer folder: tokenizer.json, chat_template.jinja, generation_config.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from dspark.engines.contract import Int32
from dspark.errors import ConfigurationError, InvalidRequestError
from dspark.orchestrator.chat import ChatTemplate, Message
from dspark.orchestrator.text import IncrementalDetokenizer


class Tokenizer:
    """Text to token ids and back. Raises ConfigurationError for a folder that cannot be read or is not understood."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
            description = json.loads(path.read_text("utf-8"))
        except Exception as error:        # the tokenizers library raises bare Exception
            raise ConfigurationError(f"tokenizer {path} cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary_size: int = self._tokenizer.get_vocab_size()
        self.token_bytes = _token_bytes(self._tokenizer, description, path)
        self.longest_token = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)))      # in characters
        generation = _read_generation(folder / "generation_config.json")
        self.stop_tokens = frozenset(_ids(generation.get("eos_token_id")))
        template = folder / "chat_template.jinja"
        self._chat = ChatTemplate(
            template.read_text("utf-8"),
            bos_token=self._name(generation.get("bos_token_id")),
            eos_token=self._name(generation.get("eos_token_id")),
        ) if template.is_file() else None

    def encode(self, text: str, add_special_tokens: bool = True) -> Int32:
        """Token ids [P] of `text`."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids, np.int32)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of whole sequences; special tokens are left out."""
        return b"".join(self.token_bytes[token] for token in tokens).decode(errors="replace")

    def detokenizer(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self.token_bytes)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt text of a conversation. Raises InvalidRequestError where the template refuses it."""
        if self._chat is None:
            raise InvalidRequestError("messages: this model has no chat template; send text_input or input_ids")
        return self._chat.render(messages)

    def _name(self, ids: Any) -> str:
        found = _ids(ids)
        return (self._tokenizer.id_to_token(found[0]) or "") if found else ""


def _ids(value: Any) -> list[int]:
    return [] if value is None else [int(value)] if isinstance(value, int) else [int(token) for token in value]


def _read_generation(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: a JSON object is expected")
    return values


def _token_bytes(tokenizer: tokenizers.Tokenizer, description: dict[str, Any], path: Path) -> list[bytes]:
    """The bytes behind every token id, empty for special tokens and unused ids."""
    decoder = description.get("decoder") or {}
    parts = {part.get("type") for part in decoder.get("decoders", [decoder])}
    if "ByteLevel" in parts:
        bytes_of = _byte_level_bytes
    elif parts & {"ByteFallback", "Metaspace"}:
        bytes_of = _sentencepiece_bytes
    else:
        raise ConfigurationError(
            f"tokenizer {path}: decoder {sorted(map(str, parts))} is not understood; "
            "expected ByteLevel, ByteFallback or Metaspace"
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    for name, token in vocabulary.items():
        table[token] = bytes_of(name)
    for token, added in tokenizer.get_added_tokens_decoder().items():
        table[token] = b"" if added.special else added.content.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte: printable ones stand for themselves, the others follow from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


def _byte_level_bytes(name: str) -> bytes:
    try:
        return bytes(_BYTE_ALPHABET[character] for character in name)
    except KeyError:                  # a token outside the byte alphabet stands for itself
        return name.encode()


def _sentencepiece_bytes(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()
