"""Streams from the running server: shared rounds, seeds, both HTTP endpoints, chat, log-probabilities."""

from __future__ import annotations

import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import GAMMA, SLOTS, metrics
from dspark_client.server import SupervisedServer
from dspark_client.transport import ACCEPTED, FIRST, Chunk, Connection, Generation, Message

pytestmark = pytest.mark.serving


def collect(connection: Connection, generation: Generation) -> list[Chunk]:
    return list(connection.generate(generation, timeout_s=120))


def tokens(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def post(server: SupervisedServer, endpoint: str, **values: object) -> str:
    request = urllib.request.Request(
        f"http://{server.http_address}/v2/models/dspark/{endpoint}", json.dumps(values).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def together(connection: Connection, generations: list[Generation]) -> list[list[Chunk]]:
    """Run all at once, each on a stream and a thread of its own, started at the same moment."""
    barrier = threading.Barrier(len(generations))

    def run(generation: Generation) -> list[Chunk]:
        barrier.wait()
        return collect(connection, generation)

    with ThreadPoolExecutor(len(generations)) as pool:
        return list(pool.map(run, generations))


def test_a_stream_is_whole_and_its_last_chunk_has_the_statistics(connection: Connection) -> None:
    chunks = collect(connection, Generation(text_input="hello", max_tokens=40, ignore_eos=True))
    assert len(tokens(chunks)) == 40
    assert [chunk.finish_reason for chunk in chunks] == [""] * (len(chunks) - 1) + ["length"]
    assert all(chunk.statistics is None for chunk in chunks[:-1])
    told = chunks[-1].statistics
    assert told is not None and told["output_tokens"] == 40 and told["prompt_tokens"] == 5
    origins = [origin for chunk in chunks for origin in chunk.token_origins]
    assert origins[0] == FIRST and origins.count(ACCEPTED) <= told["accepted"] <= told["verified"] <= told["drafted"]
    assert len(told["accepted_by_position"]) == GAMMA
    assert "".join(piece for chunk in chunks for piece in chunk.token_texts) == text(chunks)


def test_speculation_does_not_change_a_greedy_text(connection: Connection) -> None:
    for prompt in ("a", "hello world", "x" * 100):
        with_drafts, without = (
            tokens(collect(connection, Generation(text_input=prompt, max_tokens=60, max_draft_tokens=drafts)))
            for drafts in (None, 0)
        )
        assert with_drafts == without


def test_streams_share_rounds(tiny_server: SupervisedServer, connection: Connection) -> None:
    before = metrics(tiny_server)
    answers = together(connection, [
        Generation(text_input="x" * (n + 1), max_tokens=100, ignore_eos=True, temperature=1.0, seed=n)
        for n in range(16)
    ])
    assert all(len(tokens(chunks)) == 100 for chunks in answers)
    after = settled(tiny_server)
    rounds, rows = (after[name] - before[name] for name in ("dspark_rounds_total", "dspark_round_sequences_total"))
    assert after["dspark_output_tokens_total"] - before["dspark_output_tokens_total"] >= 1600     # and the probes'
    assert rows / rounds > SLOTS / 2        # 16 streams over 8 slots


def settled(server: SupervisedServer) -> dict[str, float]:
    """The metrics once nothing runs any more and all of it is counted."""
    seen = metrics(server)
    while True:
        threading.Event().wait(0.5)
        now = metrics(server)
        if now == seen and now["dspark_active_sequences"] == 0:
            return now
        seen = now


def test_the_same_seed_gives_the_same_stream_alone_or_among_others(connection: Connection) -> None:
    one = Generation(text_input="a story", max_tokens=60, temperature=1.0, top_p=0.95, seed=11, ignore_eos=True)
    alone = collect(connection, one)
    others = [Generation(text_input="y" * n, max_tokens=20 + 3 * n, temperature=0.9, seed=n) for n in range(1, 32)]
    among = together(connection, [*others[:15], one, *others[15:]])[15]
    assert tokens(among) == tokens(alone)
    assert text(among) == text(alone)


def test_another_seed_gives_another_stream_and_a_drawn_seed_can_be_repeated(connection: Connection) -> None:
    first = collect(connection, Generation(text_input="a", max_tokens=30, temperature=1.0, ignore_eos=True))
    assert first[-1].statistics is not None
    seed = first[-1].statistics["seed"]
    again, other = (
        collect(connection, Generation(text_input="a", max_tokens=30, temperature=1.0, ignore_eos=True, seed=number))
        for number in (seed, seed + 1)
    )
    assert tokens(again) == tokens(first) != tokens(other)


def test_one_response_without_stream_says_what_the_stream_says(connection: Connection) -> None:
    streamed = collect(connection, Generation(text_input="hello", max_tokens=30))
    (whole,) = collect(connection, Generation(text_input="hello", max_tokens=30, stream=False))
    assert (whole.text, list(whole.token_ids)) == (text(streamed), tokens(streamed))


def test_token_ids_say_the_same_as_the_text_they_spell(connection: Connection) -> None:
    spelled = collect(connection, Generation(text_input="hello", max_tokens=20))
    by_ids = collect(connection, Generation(input_ids=ids("hello"), max_tokens=20))
    assert tokens(by_ids) == tokens(spelled)


def ids(word: str) -> list[int]:
    """Token ids of lower-case letters: the tiny tokenizer lists them first, after three specials."""
    return [3 + ord(letter) - ord("a") for letter in word]


def test_the_prompt_is_repeated_only_if_asked_for(connection: Connection) -> None:
    bare = collect(connection, Generation(text_input="hello", max_tokens=10))
    echoed = collect(connection, Generation(text_input="hello", max_tokens=10, exclude_input_in_output=False))
    assert text(echoed) == "hello" + text(bare)
    assert tokens(echoed) == tokens(bare)


def test_generate_answers_with_one_json_object(tiny_server: SupervisedServer, connection: Connection) -> None:
    answer = json.loads(post(tiny_server, "generate", text_input="hello", max_tokens=20))
    assert answer["text_output"] == text(collect(connection, Generation(text_input="hello", max_tokens=20)))
    assert answer["finish_reason"] in ("stop", "length")
    assert json.loads(answer["statistics"])["prompt_tokens"] == 5


def test_generate_takes_vllms_parameters(tiny_server: SupervisedServer) -> None:
    direct = json.loads(post(tiny_server, "generate", text_input="hello", max_tokens=7, temperature=0.5, seed=3))
    for form in (
        {"parameters": {"max_tokens": 7, "temperature": 0.5, "seed": 3, "stream": False}},
        {"sampling_parameters": json.dumps({"max_tokens": "7", "temperature": "0.5", "seed": "3"}), "stream": False},
    ):
        assert json.loads(post(tiny_server, "generate", text_input="hello", **form))["token_ids"] == direct["token_ids"]


def test_generate_stream_sends_events(tiny_server: SupervisedServer) -> None:
    body = post(tiny_server, "generate_stream", text_input="hello", max_tokens=20, stream=True)
    events = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]
    assert len(events) > 1
    whole = json.loads(post(tiny_server, "generate", text_input="hello", max_tokens=20))
    assert "".join(event["text_output"] for event in events) == whole["text_output"]
    assert [event["finish_reason"] for event in events][-1] == whole["finish_reason"]


def test_chat_messages_become_the_templates_prompt(connection: Connection) -> None:
    turns = [Message("user", "hé")]
    chat = collect(connection, Generation(messages=turns, max_tokens=5, exclude_input_in_output=False))
    before, end, _ = text(chat).partition("<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n")
    assert end
    assert tokens(chat) == tokens(collect(connection, Generation(text_input=before + end, max_tokens=5)))


def test_log_probabilities_come_for_every_token_if_asked_for(connection: Connection) -> None:
    for drafts in (None, 0):
        chunks = collect(connection, Generation(
            text_input="hello", max_tokens=30, return_log_probs=True, max_draft_tokens=drafts, ignore_eos=True,
        ))
        values = [value for chunk in chunks for value in chunk.log_probs]
        assert len(values) == 30 and all(-20 < value <= 0 for value in values)
    assert all(not chunk.log_probs for chunk in collect(connection, Generation(text_input="hello", max_tokens=5)))


def test_stop_strings_and_stop_tokens_end_a_stream(connection: Connection) -> None:
    free = collect(connection, Generation(text_input="hello", max_tokens=60, ignore_eos=True))
    said, stop_token = text(free), tokens(free)[20]
    stop = said[len(said) // 2 :][:2]
    stopped = collect(connection, Generation(text_input="hello", max_tokens=60, stop_words=[stop], ignore_eos=True))
    assert text(stopped) == said[: said.index(stop)] and stopped[-1].finish_reason == "stop"
    ended = collect(connection, Generation(
        text_input="hello", max_tokens=60, stop_token_ids=[stop_token], ignore_eos=True
    ))
    assert tokens(ended) == tokens(free)[: tokens(free).index(stop_token) + 1]
