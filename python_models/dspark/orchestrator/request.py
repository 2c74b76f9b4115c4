"""A request as it arrives, and as the round loop wants it: checked, tokenised, every default filled in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engines.contract import Int32, TargetLimits
from dspark.errors import InvalidRequestError
from dspark.orchestrator import fields as kinds
from dspark.orchestrator.chat import parse_messages
from dspark.orchestrator.parameters import Parameters, RequestTensors, read_parameters
from dspark.orchestrator.randomness import SEED_BITS, draw_seed
from dspark.orchestrator.tokenizer import Tokenizer
from dspark.verification import SamplingSettings

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 128         # characters; text is held back for as long as a stop string may be starting
MAX_STOP_TOKENS = 64
PROMPTS = ("text_input", "input_ids", "messages")


@dataclass(frozen=True)
class GenerationRequest:
    """One generation, ready to be queued."""

    prompt: Int32                    # [P] P >= 1
    max_tokens: int                  # >= 1; prompt and output together fit the context
    sampling: SamplingSettings
    seed: int
    stop_tokens: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    stream: bool = False
    return_log_probs: bool = False
    echo: str = ""                   # the prompt's text, where the output is to begin with it
    max_draft_tokens: int | None = None
    min_draft_tokens: int = 0        # verified of every draft, whatever the policy says
    policy: str | None = None        # the server changes to this policy first; for benchmarks


@dataclass(frozen=True)
class RequestRules:
    """What a request is checked against."""

    tokenizer: Tokenizer
    target: TargetLimits
    default_max_tokens: int


def parse_request(raw: RequestTensors, rules: RequestRules) -> GenerationRequest:
    """Check a request and fill in its defaults (architecture, "Request and response").

    Greedy unless asked otherwise: without a temperature it is 1 where top_k, top_p or min_p narrow the choice, else 0.
    A request without a seed is given one. Raises InvalidRequestError for whatever could never succeed.
    """
    given = read_parameters(raw)
    prompt, text = _prompt(raw, rules)
    max_tokens = _max_tokens(given.max_tokens, len(prompt), rules)
    eos: frozenset[int] = frozenset() if given.ignore_eos else rules.tokenizer.stop_tokens
    return GenerationRequest(
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=_sampling(given),
        seed=draw_seed() if given.seed is None else kinds.within("seed", given.seed, 0, 2**SEED_BITS - 1),
        stop_tokens=eos | _stop_tokens(given.stop_token_ids or (), rules.target.vocabulary_size),
        stop_strings=_stop_strings(given.stop_words or ()),
        stream=bool(given.stream),
        return_log_probs=bool(given.return_log_probs),
        echo=text if given.exclude_input_in_output is False else "",
        max_draft_tokens=_max_draft_tokens(given.max_draft_tokens),
        min_draft_tokens=_min_draft_tokens(given.min_draft_tokens or 0, given.max_draft_tokens),
        policy=given.policy,
    )


def _prompt(raw: RequestTensors, rules: RequestRules) -> tuple[Int32, str]:
    """Token ids and text of the prompt."""
    given = [name for name in PROMPTS if getattr(raw, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InvalidRequestError(f"exactly one of {', '.join(PROMPTS)} is expected, not {found}")
    tokenizer, context = rules.tokenizer, rules.target.max_context
    if raw.input_ids is not None:
        listed = kinds.integers("input_ids", kinds.from_tensor("input_ids", raw.input_ids, True))
        _token_ids("input_ids", listed, rules.target.vocabulary_size)
        prompt = np.array(listed, np.int32)
        text = tokenizer.decode(listed) if len(listed) <= context else ""
    else:
        text = kinds.text(given[0], kinds.from_tensor(given[0], getattr(raw, given[0]), False))
        chat = given[0] == "messages"
        if chat:
            text = tokenizer.render_chat(parse_messages(text))
        if len(text) > context * tokenizer.longest_token:       # no tokeniser could make it fit: do not even try
            raise InvalidRequestError(f"{given[0]} of {len(text)} characters cannot fit a context of {context} tokens")
        prompt = tokenizer.encode(text, add_special_tokens=not chat)
        _token_ids(given[0], prompt.tolist(), rules.target.vocabulary_size)
    if not len(prompt):
        raise InvalidRequestError(f"{given[0]} is empty; at least one token is expected")
    return prompt, text


def _max_tokens(wanted: int | None, prompt: int, rules: RequestRules) -> int:
    context = rules.target.max_context
    room = context - prompt
    if room < 1:
        raise InvalidRequestError(f"the prompt has {prompt} tokens and leaves no room in the context of {context}")
    if wanted is None:
        return min(rules.default_max_tokens, room)
    if wanted < 1:
        raise InvalidRequestError(f"max_tokens is {wanted}; at least 1 is expected")
    if wanted > room:
        raise InvalidRequestError(
            f"a prompt of {prompt} tokens and max_tokens {wanted} exceed the context of {context}; at most {room} fit"
        )
    return wanted


def _sampling(given: Parameters) -> SamplingSettings:
    top_k = kinds.within("top_k", given.top_k or 0, 0, 2**31 - 1)
    top_p = 1.0 if given.top_p is None else given.top_p
    min_p = given.min_p or 0.0
    penalty = 1.0 if given.repetition_penalty is None else given.repetition_penalty
    narrows = top_k > 0 or top_p < 1.0 or min_p > 0.0
    temperature = float(narrows) if given.temperature is None else given.temperature
    if temperature < 0.0:
        raise InvalidRequestError(f"temperature is {temperature}; 0 (greedy) or more is expected")
    if not 0.0 < top_p <= 1.0:
        raise InvalidRequestError(f"top_p is {top_p}; more than 0 and at most 1 is expected")
    if not 0.0 <= min_p <= 1.0:
        raise InvalidRequestError(f"min_p is {min_p}; a number from 0 to 1 is expected")
    if not 0.01 <= penalty <= 100.0:
        raise InvalidRequestError(f"repetition_penalty is {penalty}; a number from 0.01 to 100 is expected (1: off)")
    return SamplingSettings(temperature, top_k, top_p, min_p, penalty)


def _stop_strings(strings: tuple[str, ...]) -> tuple[str, ...]:
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"stop_words holds {len(strings)} strings; at most {MAX_STOP_STRINGS} are expected")
    for string in strings:
        if not 0 < len(string) <= MAX_STOP_STRING_LENGTH:
            raise InvalidRequestError(
                f"stop_words: a string of {len(string)} characters where 1 to {MAX_STOP_STRING_LENGTH} are expected"
            )
    return strings


def _stop_tokens(tokens: tuple[int, ...], vocabulary: int) -> frozenset[int]:
    if len(tokens) > MAX_STOP_TOKENS:
        raise InvalidRequestError(f"stop_token_ids holds {len(tokens)} ids; at most {MAX_STOP_TOKENS} are expected")
    _token_ids("stop_token_ids", tokens, vocabulary)
    return frozenset(tokens)


def _token_ids(name: str, tokens: tuple[int, ...] | list[int], vocabulary: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise InvalidRequestError(f"{name}: {wrong} is no token; ids run from 0 to {vocabulary - 1}")


def _max_draft_tokens(wanted: int | None) -> int | None:
    if wanted is not None and wanted < 0:
        raise InvalidRequestError(f"max_draft_tokens is {wanted}; 0 (no speculation) or more is expected")
    return wanted


def _min_draft_tokens(wanted: int, most: int | None) -> int:
    if wanted < 0:
        raise InvalidRequestError(f"min_draft_tokens is {wanted}; 0 or more is expected")
    if most is not None and wanted > most:
        raise InvalidRequestError(f"min_draft_tokens {wanted} is more than max_draft_tokens {most}")
    return wanted
