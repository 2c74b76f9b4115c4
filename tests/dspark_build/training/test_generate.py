"""The generate stage, with a whole-sequence torch engine behind the contract."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from dspark.engines.contract import TargetLimits, TargetResult, TargetStep
from dspark.errors import ConfigurationError
from dspark.orchestrator.tokenizer import Tokenizer
from dspark_build.models.target import Target
from dspark_build.tiny import make_tiny_target
from dspark_build.training import GenerateConfig, generate_responses
from dspark_build.training.responses import Responses, read_responses, shard_numbers, shard_path


class WholeSequenceEngine:
    """Recomputes every sequence from its first token: slow, and the same whatever the batch."""

    def __init__(self, folder: Path) -> None:
        self.target = Target.load(folder)
        self.limits = TargetLimits(
            vocabulary_size=320, hidden_size=64, max_context=256, max_slots=4, kv_block_size=16, kv_blocks=64,
            max_draft_tokens=0, spare_tokens=1,
        )  # fmt: skip
        self.slots: dict[int, list[int]] = {}
        self.steps = 0

    @torch.no_grad()
    def step(self, step: TargetStep) -> TargetResult:
        self.steps += 1
        count, next_tokens, first = len(step.slots), [], 0
        assert count <= self.limits.max_slots
        for r, slot in enumerate(step.slots.tolist()):
            own = self.slots.setdefault(slot, [])
            del own[step.positions[r] :]
            assert len(own) == step.positions[r]
            own += step.tokens[first : first + step.token_counts[r]].tolist()
            first += step.token_counts[r]
            logits = self.target(torch.tensor([own]))[0, -1].double()
            if step.sampling.temperature[r] == 0:
                next_tokens.append(int(logits.argmax()))
            else:
                chances = torch.softmax(logits / float(step.sampling.temperature[r]), -1).cumsum(-1)
                next_tokens.append(int((chances <= float(step.uniforms[r, 0])).sum().clamp(max=319)))
        return TargetResult(
            np.zeros(count, np.int32), np.array(next_tokens, np.int32), np.zeros(count, np.int32),
            np.zeros((0, 64), np.float32), np.full((count, 1), np.nan, np.float32),
        )  # fmt: skip

    def close(self) -> None:
        self.slots.clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> tuple[WholeSequenceEngine, Tokenizer]:
    folder = make_tiny_target(tmp_path_factory.mktemp("target"))
    return WholeSequenceEngine(folder), Tokenizer(folder)


@pytest.fixture
def prompts(tmp_path) -> tuple[Path, Path]:
    paths = (tmp_path / "code.jsonl", tmp_path / "chat.jsonl")
    for path, count in zip(paths, (7, 3), strict=True):
        lines = [{"id": f"{path.stem}/{i}", "domain": path.stem, "turns": ["say " + "x" * i]} for i in range(count)]
        path.write_text("\n".join(map(json.dumps, lines)))
    return paths


def config_of(prompts: tuple[Path, ...], output: Path, **changes) -> GenerateConfig:
    return GenerateConfig(prompts, output, **({"max_new_tokens": 12, "responses_per_shard": 3, "batch": 3} | changes))


def answers(folder: Path) -> dict[tuple[str, int], list[int]]:
    found = {}
    for number in shard_numbers(folder):
        shard = read_responses(folder, number)
        for i, start in enumerate(shard.starts):
            key = (str(shard.ids[i]), int(shard.samples[i]))
            assert key not in found
            found[key] = shard.tokens[start : start + shard.lengths[i]].tolist()
    return found


class Interrupted(Exception):
    pass


def test_every_prompt_is_answered_once_and_prompts_come_first(model, prompts, tmp_path):
    engine, tokenizer = model
    result = generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer)
    found = answers(tmp_path / "out")
    assert result.responses == len(found) == 10
    text = "<|im_start|>user\nsay xx<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer.encode(text, add_special_tokens=False).tolist()
    assert found["code/2", 0][: len(prompt)] == prompt
    assert result.response_tokens == sum(shard.response_tokens for shard in shards(tmp_path / "out"))
    assert result.tokens_per_second > 0


def shards(folder: Path) -> list[Responses]:
    return [read_responses(folder, number) for number in shard_numbers(folder)]


def test_responses_end_at_a_stop_token_or_at_the_limit(model, prompts, tmp_path):
    engine, tokenizer = model
    generate_responses(config_of(prompts, tmp_path / "out", temperatures=(1.5,)), engine, tokenizer)
    for shard in shards(tmp_path / "out"):
        for start, length, prompt in zip(shard.starts, shard.lengths, shard.prompt_lengths, strict=True):
            response = shard.tokens[start + prompt : start + length].tolist()
            assert len(response) == 12 or response[-1] in tokenizer.stop_tokens
            assert not set(response[:-1]) & tokenizer.stop_tokens


def test_an_interruption_loses_nothing_that_was_finished_and_changes_no_answer(model, prompts, tmp_path):
    engine, tokenizer = model
    generate_responses(config_of(prompts, tmp_path / "whole"), engine, tokenizer)
    calls = 0

    def interrupt(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise Interrupted

    with pytest.raises(Interrupted):
        generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer, interrupt)
    before = answers(tmp_path / "out")
    assert 0 < len(before) < 10
    generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer)
    assert answers(tmp_path / "out") == answers(tmp_path / "whole")


def test_an_answer_does_not_depend_on_the_batch(model, prompts, tmp_path):
    engine, tokenizer = model
    generate_responses(config_of(prompts, tmp_path / "one", batch=1, temperatures=(1.0,)), engine, tokenizer)
    generate_responses(config_of(prompts, tmp_path / "four", batch=4, temperatures=(1.0,)), engine, tokenizer)
    assert answers(tmp_path / "one") == answers(tmp_path / "four")


def test_a_token_goal_stops_early_and_a_second_sample_differs(model, prompts, tmp_path):
    engine, tokenizer = model
    generate_responses(config_of(prompts, tmp_path / "few", response_tokens=20), engine, tokenizer)
    assert 20 <= sum(shard.response_tokens for shard in shards(tmp_path / "few")) < 70
    twice = config_of(prompts, tmp_path / "twice", samples_per_prompt=2, temperatures=(1.0,))
    generate_responses(twice, engine, tokenizer)
    found = answers(tmp_path / "twice")
    assert len(found) == 20
    assert found["code/1", 0] != found["code/1", 1]


def test_a_prompt_is_not_answered_greedily_twice(model, prompts, tmp_path):
    engine, tokenizer = model
    config = config_of(prompts, tmp_path / "out", samples_per_prompt=3, temperatures=(0.0, 1.0, 0.0))
    generate_responses(config, engine, tokenizer)
    greedy = [name for shard in shards(tmp_path / "out") for name in shard.ids[shard.temperatures == 0].tolist()]
    assert sorted(greedy) == sorted(set(greedy)) and len(greedy) == 10


def test_long_prompts_are_left_out(model, prompts, tmp_path):
    engine, tokenizer = model
    shortest = len(tokenizer.encode(tokenizer_text(""), add_special_tokens=False))
    result = generate_responses(config_of(prompts, tmp_path / "out", max_prompt_tokens=shortest + 1), engine, tokenizer)
    assert result.responses == 4     # two of each file


def tokenizer_text(xs: str) -> str:
    return f"<|im_start|>user\nsay {xs}<|im_end|>\n<|im_start|>assistant\n"


def test_a_bad_prompts_line_is_refused_or_reported(model, prompts, tmp_path):
    engine, tokenizer = model
    prompts[1].write_text(prompts[1].read_text() + "\nnonsense\n")
    with pytest.raises(ConfigurationError, match=r"chat\.jsonl:4:"):
        generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer)
    result = generate_responses(config_of(prompts, tmp_path / "out", skip_bad_lines=True), engine, tokenizer)
    assert result.responses == 10 and ":4:" in result.skipped[0]


def test_a_damaged_shard_stops_the_stage_by_name(model, prompts, tmp_path):
    engine, tokenizer = model
    generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer)
    shard_path(tmp_path / "out", 1).write_bytes(b"PK nonsense")
    with pytest.raises(ConfigurationError, match=r"responses-00001\.npz is damaged"):
        generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"batch": 0}, "batch"), ({"temperatures": (-1.0,)}, "temperatures"), ({"max_new_tokens": 2000}, "KV blocks")],
)
def test_settings_out_of_range_are_named(model, prompts, tmp_path, change, named):
    with pytest.raises(ConfigurationError, match=named):
        generate_responses(config_of(prompts, tmp_path / "out", **change), *model)
