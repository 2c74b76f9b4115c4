"""Conversations: the JSON of `messages`, and the model's own template that turns them into a prompt."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dspark.errors import ConfigurationError, InvalidRequestError

EXPECTED = 'expected a JSON list such as [{"role": "user", "content": "Hello"}]'


@dataclass(frozen=True)
class Message:
    """One turn: who speaks, and what is said."""

    role: str
    content: str


def parse_messages(text: str) -> tuple[Message, ...]:
    """The turns of a conversation. Raises InvalidRequestError for JSON that is none, saying which message is wrong."""
    try:
        turns = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"messages is not JSON ({error}); {EXPECTED}") from error
    if not isinstance(turns, list) or not turns:
        raise InvalidRequestError(f"messages holds no message; {EXPECTED}")
    return tuple(_message(number, turn) for number, turn in enumerate(turns))


def _message(number: int, turn: Any) -> Message:
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise InvalidRequestError(f"messages[{number}] has no role; {EXPECTED}")
    unknown = sorted(set(turn) - {"role", "content"})
    if unknown:
        raise InvalidRequestError(f"messages[{number}]: {unknown[0]!r} is not understood; known: role, content")
    content = turn.get("content")
    if isinstance(content, list):                 # OpenAI's list of parts; only text has a meaning here
        content = "".join(_part(number, part) for part in content)
    if not isinstance(content, str):
        raise InvalidRequestError(f"messages[{number}]: content must be text")
    if any("\ud800" <= character <= "\udfff" for character in content + turn["role"]):
        raise InvalidRequestError(f"messages[{number}]: content holds half of a surrogate pair, which is no character")
    return Message(turn["role"], content)


def _part(number: int, part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise InvalidRequestError(f'messages[{number}]: a content part must be {{"type": "text", "text": ...}}')
    return text


class ChatTemplate:
    """A model's chat_template.jinja, run in a sandbox. Raises ConfigurationError for a template with wrong syntax."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigurationError(f"chat_template.jinja: {error}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, up to where the assistant's answer begins. Raises InvalidRequestError where the template does."""
        turns = [asdict(message) for message in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._tokens)
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidRequestError(f"messages: the model's chat template refuses them: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
