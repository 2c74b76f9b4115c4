"""The generate stage: the target answers the training prompts itself, many at once; its states are kept if wanted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from dspark.engines.contract import TargetLimits
from dspark.errors import ConfigurationError
from dspark.orchestrator.chat import Message
from dspark.orchestrator.tokenizer import Tokenizer
from dspark.prompts import Prompt, read_prompt_file

from dspark_build.progress import Progress, silent
from dspark_build.training.answers import Answer, advance
from dspark_build.training.prompts import distinct, hash_of, interleave
from dspark_build.training.recorder import Decoder
from dspark_build.training.responses import Responses, read_responses, shard_numbers, write_responses
from dspark_build.training.state_writer import StateWriter


@dataclass(frozen=True)
class GenerateConfig:
    """Settings of the generate stage. Raises ConfigurationError naming the field that is out of range."""

    prompts: tuple[Path, ...]        # files of JSON lines {"id", "domain", "turns"}
    output: Path                     # folder of response shards; prompts answered there are not asked again
    limit: int = 0                   # prompts taken of each file; 0: all
    temperatures: tuple[float, ...] = (0.0, 1.0, 0.0, 0.7)   # dealt to prompts by the hash of their ids
    samples_per_prompt: int = 1
    max_prompt_tokens: int = 320     # longer prompts are left out
    max_new_tokens: int = 256
    batch: int = 64                  # sequences decoded together, as far as the engine's limits allow
    prefill_tokens: int = 512        # prompt tokens started in one step
    responses_per_shard: int = 64
    response_tokens: int = 0         # stop once this many are there in all; 0: all prompts
    seed: int = 0
    skip_bad_lines: bool = False

    def __post_init__(self) -> None:
        for name in ("samples_per_prompt", "max_prompt_tokens", "max_new_tokens", "batch", "responses_per_shard"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.temperatures or min(self.temperatures) < 0:
            raise ConfigurationError(f"temperatures must be given and at least 0, not {self.temperatures}")
        if not self.prompts:
            raise ConfigurationError("no prompts file given")


@dataclass(frozen=True)
class GenerateResult:
    responses: int                   # new ones
    response_tokens: int
    seconds: float
    skipped: tuple[str, ...]         # bad lines of the prompts files

    @property
    def tokens_per_second(self) -> float:
        return self.response_tokens / self.seconds if self.seconds else 0.0


@dataclass
class _Shards:
    """Writes finished responses, a shard at a time; states first, so that a response shard never lacks its own."""

    config: GenerateConfig
    number: int
    states: StateWriter | None
    waiting: list[Answer] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.waiting.append(answer)
        if len(self.waiting) >= self.config.responses_per_shard:
            self.flush()

    def flush(self) -> None:
        if not self.waiting:
            return
        answers, self.waiting = self.waiting, []
        if self.states is not None:
            self.states.write(self.number, answers)
        write_responses(
            self.config.output,
            self.number,
            Responses(
                tokens=np.concatenate([np.array(a.tokens, np.int32) for a in answers]),
                lengths=np.array([len(a.tokens) for a in answers], np.int32),
                prompt_lengths=np.array([a.prompt_length for a in answers], np.int32),
                temperatures=np.array([a.temperature for a in answers], np.float32),
                samples=np.array([a.sample for a in answers], np.int32),
                ids=np.array([a.prompt.id for a in answers]),
                domains=np.array([a.prompt.domain for a in answers]),
            ),
        )
        self.number += 1


def generate_responses(
    config: GenerateConfig,
    decoder: Decoder,
    tokenizer: Tokenizer,
    progress: Progress = silent,
    states: StateWriter | None = None,
) -> GenerateResult:
    """Answer every prompt that has no response in `config.output` yet; `states` gets the target's states of each.

    Which tokens a response has depends on the seed, the prompt and the engine; not on interruptions, nor, but for near
    ties, on its neighbours. An interruption loses at most the responses since the last full shard. Raises
    ConfigurationError for a bad prompts file or a damaged shard, and when the disk fills up.
    """
    files = [
        read_prompt_file(path, skip_bad_lines=config.skip_bad_lines, unique_ids=True) for path in config.prompts
    ]
    prompts = distinct(interleave([file.prompts[: config.limit or None] for file in files]))
    done, tokens_before, number = _already_there(config.output)
    limits = decoder.limits
    waiting = _questions(config, prompts, done, tokenizer, limits)
    questions = config.samples_per_prompt * len(prompts)
    shards = _Shards(config, number, states)
    slots = _slots(config, limits)
    active: list[Answer] = []
    began, made, finished = time.monotonic(), 0, 0
    try:
        while True:
            enough = config.response_tokens and tokens_before + made >= config.response_tokens
            if not enough:
                active += _admit(waiting, slots, config.prefill_tokens)
            if not active:
                break
            advance(decoder, active, states is not None)
            made += len(active)
            ended = [answer for answer in active if _is_complete(answer, config, tokenizer)]
            for answer in ended:
                shards.add(answer)
            active = [answer for answer in active if answer not in ended]
            decoder.release(answer.slot for answer in ended)
            slots += [answer.slot for answer in ended]
            finished += len(ended)
            if config.response_tokens:
                progress("response tokens", tokens_before + made, config.response_tokens)
            else:
                progress("responses", len(done) + finished, questions)
    except OSError as error:
        shards.waiting.clear()
        raise ConfigurationError(f"{config.output}: {error}; full shards are kept, go on when there is room") from error
    finally:
        decoder.release(answer.slot for answer in active)
        shards.flush()
    return GenerateResult(
        finished, made, time.monotonic() - began, tuple(line for file in files for line in file.skipped)
    )


def _already_there(folder: Path) -> tuple[set[tuple[str, int]], int, int]:
    """Answered (prompt id, sample) pairs, their response tokens, and the number of the next shard."""
    done: set[tuple[str, int]] = set()
    tokens, numbers = 0, shard_numbers(folder)
    for number in numbers:
        shard = read_responses(folder, number)
        done |= set(zip(shard.ids.tolist(), shard.samples.tolist(), strict=True))
        tokens += shard.response_tokens
    return done, tokens, numbers[-1] + 1 if numbers else 0


def _questions(
    config: GenerateConfig,
    prompts: Sequence[Prompt],
    done: set[tuple[str, int]],
    tokenizer: Tokenizer,
    limits: TargetLimits,
) -> Iterator[Answer]:
    """What is still to be asked: all prompts once, then all of them again for the next sample."""
    longest = min(config.max_prompt_tokens, limits.max_context - config.max_new_tokens)
    for sample in range(config.samples_per_prompt):
        for prompt in prompts:
            if (prompt.id, sample) in done:
                continue
            temperature = _temperature(config, prompt, sample)
            if temperature == 0 and any(_temperature(config, prompt, earlier) == 0 for earlier in range(sample)):
                continue             # the greedy answer is there already
            text = tokenizer.render_chat([Message("user", prompt.turns[0])])
            tokens = tokenizer.encode(text, add_special_tokens=False).tolist()
            if len(tokens) <= longest:
                random = np.random.default_rng((config.seed, hash_of(f"{prompt.id}#{sample}")))
                yield Answer(prompt, sample, temperature, len(tokens), tokens, random)


def _temperature(config: GenerateConfig, prompt: Prompt, sample: int) -> float:
    return config.temperatures[(hash_of(prompt.id) + sample) % len(config.temperatures)]


def _slots(config: GenerateConfig, limits: TargetLimits) -> list[int]:
    """Slots to use: as many as the KV pool can serve to the end, whatever the lengths."""
    tokens = config.max_prompt_tokens + config.max_new_tokens + limits.spare_tokens
    affordable = limits.kv_blocks // -(-tokens // limits.kv_block_size)
    if affordable < 1:
        raise ConfigurationError(
            f"one sequence of {tokens} tokens does not fit the engine's {limits.kv_blocks} KV blocks; "
            "lower max_prompt_tokens or max_new_tokens"
        )
    return list(range(min(config.batch, limits.max_slots, affordable)))


def _admit(waiting: Iterator[Answer], slots: list[int], prefill_tokens: int) -> list[Answer]:
    """Start new responses in free slots, about `prefill_tokens` prompt tokens of them."""
    admitted: list[Answer] = []
    while slots and sum(answer.prompt_length for answer in admitted) < prefill_tokens:
        answer = next(waiting, None)
        if answer is None:
            break
        answer.slot = slots.pop()
        admitted.append(answer)
    return admitted


def _is_complete(answer: Answer, config: GenerateConfig, tokenizer: Tokenizer) -> bool:
    return answer.tokens[-1] in tokenizer.stop_tokens or answer.response_length >= config.max_new_tokens
