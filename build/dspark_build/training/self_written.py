"""User turns that the target writes itself: the chat template up to the user's message, and the message sampled.

Where no prompt set is at hand, or one domain has few, these make one: a prompts file like any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from dspark.errors import ConfigurationError
from dspark.orchestrator.chat import Message
from dspark.orchestrator.tokenizer import Tokenizer
from dspark.prompts import Prompt

from dspark_build.progress import Progress, silent
from dspark_build.training.answers import Answer, advance
from dspark_build.training.prompts import distinct
from dspark_build.training.recorder import Decoder

MARK = "\u2063MESSAGE\u2063"         # stands for the user's message while the template is rendered
FEWEST_CHARACTERS = 8                # of a message worth asking


@dataclass(frozen=True)
class SelfWrittenConfig:
    """Settings. Raises ConfigurationError naming the field that is out of range."""

    output: Path                     # the prompts file to write
    count: int                       # messages to sample; what is cut, too short or double is left out
    domain: str = "chat"
    openings: tuple[str, ...] = ("",)  # what messages begin with, in turn
    temperature: float = 1.0
    max_tokens: int = 128            # longer messages are left out
    batch: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("count", "max_tokens", "batch"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.temperature <= 0:
            raise ConfigurationError(f"temperature must be above 0, else all messages are one, not {self.temperature}")
        if not self.openings or not self.domain:
            raise ConfigurationError("a domain and at least one opening are needed (an empty opening is one)")


def write_prompts(
    config: SelfWrittenConfig, decoder: Decoder, tokenizer: Tokenizer, progress: Progress = silent
) -> list[Prompt]:
    """Sample user messages and write them to `config.output`, as a whole or not at all.

    Raises ConfigurationError when the template has no place for a user's message, or no message came to its end.
    """
    waiting = _beginnings(config, tokenizer)
    slots = list(range(min(config.batch, decoder.limits.max_slots)))
    active: list[Answer] = []
    ended: list[Answer] = []
    while True:
        while slots and (answer := next(waiting, None)):
            answer.slot = slots.pop()
            active.append(answer)
        if not active:
            break
        advance(decoder, active, keep_states=False)
        leaving = [a for a in active if a.tokens[-1] in tokenizer.stop_tokens or a.response_length >= config.max_tokens]
        active = [answer for answer in active if answer not in leaving]
        decoder.release(answer.slot for answer in leaving)
        slots += [answer.slot for answer in leaving]
        ended += leaving
        progress("user messages", len(ended), config.count)
    kept = distinct(_messages(config, ended, tokenizer))
    if not kept:
        raise ConfigurationError(f"none of {config.count} messages ended within {config.max_tokens} tokens")
    config.output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = config.output.with_suffix(".unfinished")
    unfinished.write_text("".join(json.dumps(asdict(prompt)) + "\n" for prompt in kept), encoding="utf-8")
    os.replace(unfinished, config.output)
    return kept


def _beginnings(config: SelfWrittenConfig, tokenizer: Tokenizer) -> Iterator[Answer]:
    text = tokenizer.render_chat([Message("user", MARK)])
    header, found, _ = text.partition(MARK)
    if not found:
        raise ConfigurationError("the chat template has no place for a user's message")
    for number in range(config.count):
        opening = config.openings[number % len(config.openings)]
        tokens = tokenizer.encode(header + opening, add_special_tokens=False).tolist()
        prompt = Prompt(f"self-written/{config.domain}-{number}", config.domain, (opening,))
        random = np.random.default_rng((config.seed, number))
        yield Answer(prompt, 0, config.temperature, len(tokens), tokens, random)


def _messages(config: SelfWrittenConfig, answers: list[Answer], tokenizer: Tokenizer) -> Iterator[Prompt]:
    for answer in sorted(answers, key=lambda answer: int(answer.prompt.id.rpartition("-")[2])):
        if answer.tokens[-1] not in tokenizer.stop_tokens:
            continue
        written = tokenizer.decode(answer.tokens[answer.prompt_length : -1])
        message = (answer.prompt.turns[0] + written).strip()
        if len(message) >= FEWEST_CHARACTERS and "\N{REPLACEMENT CHARACTER}" not in message:
            yield Prompt(answer.prompt.id, config.domain, (message,))
