"""The generate stage, with a whole-sequence torch decoder, and with the recording engine that is used in earnest."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dspark.engines.contract import TargetLimits
from dspark.engines.paged_runner import RaggedBatch
from dspark.errors import ConfigurationError
from dspark.orchestrator.tokenizer import Tokenizer
from dspark.prompts import read_prompt_file
from dspark_build.export.recording import build_recording_engine
from dspark_build.models.target import Target
from dspark_build.tiny import make_tiny_target
from dspark_build.training import (
    GenerateConfig,
    Recorder,
    SelfWrittenConfig,
    StateWriter,
    generate_responses,
    write_prompts,
)
from dspark_build.training.answers import sample
from dspark_build.training.cache import CacheConfig, cache_states
from dspark_build.training.data import load_data
from dspark_build.training.recorder import Recording
from dspark_build.training.responses import Responses, read_responses, shard_numbers, shard_path

TAPS = (-1, 1)


class WholeSequenceDecoder:
    """Recomputes every sequence from its first token: slow, and the same whatever the batch."""

    def __init__(self, folder: Path) -> None:
        self.target = Target.load(folder)
        self.limits = TargetLimits(
            vocabulary_size=320, hidden_size=64, max_context=256, max_slots=4, kv_block_size=16, kv_blocks=64,
            max_draft_tokens=0, spare_tokens=1,
        )  # fmt: skip
        self.slots: dict[int, list[int]] = {}

    @torch.no_grad()
    def step(self, batch: RaggedBatch) -> Recording:
        assert len(batch.slots) <= self.limits.max_slots
        logits, states, first = [], [], 0
        for r, slot in enumerate(batch.slots.tolist()):
            own = self.slots.setdefault(slot, [])
            assert len(own) == batch.positions[r]
            own += batch.tokens[first : first + batch.token_counts[r]].tolist()
            first += batch.token_counts[r]
            output = self.target.forward_dense(torch.tensor([own]))
            logits.append(self.target.lm_head(output.last_hidden)[0, -1])
            taps = output.tapped((*TAPS, self.target.config.layers - 1))[0]
            states.append(taps[batch.positions[r] :])
        return Recording(torch.stack(logits).numpy(), torch.cat(states).numpy())

    def release(self, slots) -> None:
        for slot in slots:
            del self.slots[slot]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> tuple[WholeSequenceDecoder, Tokenizer]:
    folder = make_tiny_target(tmp_path_factory.mktemp("target"))
    return WholeSequenceDecoder(folder), Tokenizer(folder)


@pytest.fixture
def prompts(tmp_path) -> tuple[Path, Path]:
    paths = (tmp_path / "code.jsonl", tmp_path / "chat.jsonl")
    for path, count, verb in zip(paths, (7, 3), ("say ", "ask "), strict=True):
        lines = [{"id": f"{path.stem}/{i}", "domain": path.stem, "turns": [verb + "x" * i]} for i in range(count)]
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
    with pytest.raises(ConfigurationError, match=r"chat\.jsonl, line 4:"):
        generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer)
    result = generate_responses(config_of(prompts, tmp_path / "out", skip_bad_lines=True), engine, tokenizer)
    assert result.responses == 10 and "line 4:" in result.skipped[0]


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


def test_doubled_prompts_are_asked_once(model, prompts, tmp_path):
    engine, tokenizer = model
    prompts[1].write_text(json.dumps({"id": "other", "domain": "chat", "turns": ["Say  XXX"]}))
    generate_responses(config_of(prompts, tmp_path / "out"), engine, tokenizer)
    assert len(answers(tmp_path / "out")) == 7


def test_a_sample_follows_the_softmax_and_log_z_is_its_denominator():
    logits = np.log(np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], np.float32)) + 3
    tokens, log_z = sample(logits, np.array([1.0, 1.0, 0.0], np.float32), np.array([0.49, 0.81, 0.0]))
    assert tokens.tolist() == [0, 2, 2]
    np.testing.assert_allclose(log_z, 3, rtol=1e-6)
    uniforms = (np.arange(1000) + 0.5) / 1000
    drawn, _ = sample(np.tile(logits[:1], (1000, 1)), np.full(1000, 0.5, np.float32), uniforms)
    squared = np.array([0.25, 0.09, 0.04])
    np.testing.assert_allclose(np.bincount(drawn) / 1000, squared / squared.sum(), atol=2e-3)


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> tuple[Path, Recorder, Tokenizer]:
    root = tmp_path_factory.mktemp("recording")
    target = make_tiny_target(root / "target")
    build_recording_engine(target, TAPS, "fp32", root / "engine", slots=4, tokens_per_slot=64)
    return target, Recorder(root / "engine", threads=1), Tokenizer(target)


def test_recorded_states_are_those_that_the_cache_stage_computes(recording, prompts, tmp_path):
    target, recorder, tokenizer = recording
    writer = StateWriter.for_target(target, TAPS, tmp_path / "states")
    config = config_of(prompts, tmp_path / "out", max_prompt_tokens=50)
    generate_responses(config, recorder, tokenizer, states=writer)
    cached = CacheConfig(target, tmp_path / "out", tmp_path / "cached", TAPS)
    cache_states(cached)
    recorded = load_data(tmp_path / "out", tmp_path / "states", writer.source, 0.0).train
    expected = load_data(tmp_path / "out", tmp_path / "cached", writer.source, 0.0).train
    assert len(recorded) == len(expected) > 4
    for ours, theirs in zip(recorded, expected, strict=True):
        read = len(ours.tokens) - 1                                  # the last token is never read
        np.testing.assert_allclose(ours.taps[:read], theirs.taps[:read], atol=2e-3, rtol=2e-3)
        np.testing.assert_allclose(ours.last[:read], theirs.last[:read], atol=5e-3, rtol=5e-3)
        np.testing.assert_allclose(ours.log_z, theirs.log_z, atol=1e-3)


def test_a_drafter_may_use_fewer_taps_than_were_recorded_but_no_others(recording, prompts, tmp_path):
    target, recorder, tokenizer = recording
    writer = StateWriter.for_target(target, TAPS, tmp_path / "states")
    config = config_of(prompts, tmp_path / "out", max_prompt_tokens=50)
    generate_responses(config, recorder, tokenizer, states=writer)
    whole = load_data(tmp_path / "out", tmp_path / "states", writer.source, 0.0).train[0]
    one = load_data(tmp_path / "out", tmp_path / "states", replace(writer.source, tap_ids=(1,)), 0.0).train[0]
    np.testing.assert_array_equal(one.context(7), whole.context(7)[:, -whole.taps.shape[2] :])
    with pytest.raises(ConfigurationError, match="tap 0 was not cached"):
        load_data(tmp_path / "out", tmp_path / "states", replace(writer.source, tap_ids=(0, 1)), 0.0)


def test_a_full_disk_stops_generation_and_keeps_what_is_whole(recording, prompts, tmp_path, monkeypatch):
    target, recorder, tokenizer = recording
    writer = StateWriter.for_target(target, TAPS, tmp_path / "states")
    config = config_of(prompts, tmp_path / "out", max_prompt_tokens=50)

    def full(file: int, offset: int, length: int) -> None:
        if len(shard_numbers(tmp_path / "out")) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ConfigurationError, match="No space left"):
            generate_responses(config, recorder, tokenizer, states=writer)
    assert len(answers(tmp_path / "out")) == 3
    generate_responses(config, recorder, tokenizer, states=writer)
    assert len(answers(tmp_path / "out")) == 10
    assert len(load_data(tmp_path / "out", tmp_path / "states", writer.source, 0.0).train) > 4


def test_the_room_that_states_take_is_asked_for_before(recording, tmp_path):
    writer = StateWriter.for_target(recording[0], TAPS, tmp_path / "states")
    writer.check_room(1000)
    with pytest.raises(ConfigurationError, match="GB free"):
        writer.check_room(10**15)


class Terse:
    """A decoder whose messages end soon: the tiny model by itself hardly ever stops."""

    def __init__(self, decoder: WholeSequenceDecoder, stop: int) -> None:
        self.decoder, self.stop, self.limits = decoder, stop, decoder.limits
        self.release = decoder.release

    def step(self, batch: RaggedBatch) -> Recording:
        recording = self.decoder.step(batch)
        logits = recording.logits.copy()
        logits[:, self.stop] = np.log(np.exp(logits.astype(np.float64)).sum(-1) / 9)
        return Recording(logits, recording.states)


def test_the_target_writes_user_messages_that_can_be_asked(model, tmp_path):
    engine, tokenizer = model
    terse = Terse(engine, min(tokenizer.stop_tokens))
    config = SelfWrittenConfig(
        tmp_path / "own.jsonl", count=12, domain="code", openings=("Write ", "Tell me "), max_tokens=30, seed=1
    )
    written = write_prompts(config, terse, tokenizer)
    assert written and not engine.slots
    assert [(p.id, p.turns) for p in read_prompt_file(config.output).prompts] == [(p.id, p.turns) for p in written]
    assert {prompt.domain for prompt in written} == {"code"}
    assert all(prompt.turns[0].startswith(("Write", "Tell me")) for prompt in written)
    again = write_prompts(replace(config, output=tmp_path / "again.jsonl", batch=1), terse, tokenizer)
    assert again == written


def test_messages_that_never_end_are_no_prompts(model, tmp_path):
    with pytest.raises(ConfigurationError, match="none of 2 messages ended within 1 tokens"):
        write_prompts(SelfWrittenConfig(tmp_path / "own.jsonl", count=2, max_tokens=1, seed=3), *model)
    assert not (tmp_path / "own.jsonl").exists()
