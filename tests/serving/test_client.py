"""ask, chat, probe and the lossless comparison against a running server, whose model recites instead of thinking.

The model has the real one's config.pbtxt. It answers with the prompt's own characters as tokens, and claims that every
second one was an accepted draft. Asked to be "lossy", it changes one token where speculation is on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from dspark.settings import ServingSettings
from dspark_client.acceptance import answers_by, macro_tau, measure_acceptance, summarise
from dspark_client.errors import RemoteError
from dspark_client.lossless import Mismatch, compare_decodings
from dspark_client.paths import REPOSITORY
from dspark_client.prompts import Prompt
from dspark_client.server import SupervisedServer, running_server
from dspark_client.transport import Connection, Generation, Message

pytestmark = pytest.mark.serving

RECITER = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request, request.get_response_sender())

    def answer(self, request, sender):
        def given(name, default):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy()[0]

        text, messages = given("text_input", b"").decode(), given("messages", b"").decode()
        if messages:
            turns = json.loads(messages)
            text = f"{len(turns)}:" + turns[-1]["content"]
        if text == "1:refuse":
            error = pb_utils.TritonError("INVALID_ARGUMENT: not today", pb_utils.TritonError.INVALID_ARG)
            return sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
        speculation = int(given("max_draft_tokens", 4)) > 0
        tokens = [ord(character) for character in text][: int(given("max_tokens", 256))]
        if speculation and "lossy" in text:
            tokens[2] = ord("X")
        for number, token in enumerate(tokens):
            last = number == len(tokens) - 1
            sender.send(self.response(token, number % 2 if speculation else 3, last, tokens, speculation))
        sender.send(flags=FINAL)

    def response(self, token, origin, last, tokens, speculation):
        count = len(tokens) if speculation else 0
        statistics = {"rounds": len(tokens), "accepted": count, "verified": count, "drafted": count,
                      "verified_by_position": [count], "accepted_by_position": [count],
                      "judged_by_position": [count], "tau": 2.0,
                      "output_tokens": len(tokens), "ttft_ms": 1.0, "total_ms": 2.0}
        texts = lambda *values: np.array([value.encode() for value in values], object)
        tensors = [
            pb_utils.Tensor("text_output", texts(chr(token))), pb_utils.Tensor("token_texts", texts(chr(token))),
            pb_utils.Tensor("token_ids", np.array([token], np.int32)),
            pb_utils.Tensor("token_origins", np.array([origin], np.int32)),
            pb_utils.Tensor("log_probs", np.zeros(0, np.float32)),
            pb_utils.Tensor("finish_reason", texts("stop" if last else "")),
            pb_utils.Tensor("statistics", texts(json.dumps(statistics) if last else "")),
        ]
        return pb_utils.InferenceResponse(tensors)
"""
GREEN = "\x1b[32m"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedServer]:
    root = tmp_path_factory.mktemp("repository")
    (root / "dspark" / "1").mkdir(parents=True)
    shutil.copy(REPOSITORY / "model_repository" / "dspark" / "config.pbtxt", root / "dspark")
    (root / "dspark" / "1" / "model.py").write_text(RECITER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPARK_HOME", str(tmp_path_factory.mktemp("home")))
        with running_server(ServingSettings("unused"), root) as server:
            yield server


@pytest.fixture
def connection(server: SupervisedServer) -> Iterator[Connection]:
    with Connection(server.grpc_address) as connection:
        yield connection


def dspark(
    server: SupervisedServer, *arguments: str, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dspark_client", *arguments, "--address", server.grpc_address]
    environment = {**os.environ, **variables}
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, timeout=120)


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(f"p/{number}", "chat", (text,), "set") for number, text in enumerate(texts)]


def test_a_chunk_carries_text_tokens_and_origins_and_the_last_one_the_statistics(connection: Connection) -> None:
    chunks = list(connection.generate(Generation(text_input="héy")))
    assert "".join(chunk.text for chunk in chunks) == "héy"
    assert [chunk.token_ids for chunk in chunks] == [(104,), (233,), (121,)]
    assert [chunk.token_texts for chunk in chunks] == [("h",), ("é",), ("y",)]
    assert [chunk.token_origins for chunk in chunks] == [(0,), (1,), (0,)]
    assert [chunk.finish_reason for chunk in chunks] == ["", "", "stop"]
    assert chunks[0].statistics is None and chunks[-1].statistics is not None


def test_equal_answers_are_found_lossless(connection: Connection) -> None:
    report = compare_decodings(connection, prompts("one", "twenty", "three"), 100, [1, 3])
    tokens = len("1:one" + "1:twenty" + "1:three")
    assert (report.prompts, report.tokens) == (3, 3 * tokens)
    assert (report.mismatched_tokens, report.first_mismatches) == (0, [])
    assert [(run.concurrency, run.speculation, run.tokens) for run in report.runs] == [
        (1, False, tokens), (1, True, tokens), (3, False, tokens), (3, True, tokens)
    ]


def test_one_changed_token_is_found_wherever_speculation_is_on(connection: Connection) -> None:
    report = compare_decodings(connection, prompts("fine", "lossy"), 100, [1, 2])
    assert report.mismatched_tokens == 2
    assert report.first_mismatches == [
        Mismatch("p/1", concurrency, True, 2, ord("l"), ord("X")) for concurrency in (1, 2)
    ]


def test_acceptance_is_reported_by_data_set(connection: Connection) -> None:
    found = [Prompt("a/0", "chat", ("one",), "a"), Prompt("b/0", "chat", ("two",), "b")]
    answers = measure_acceptance(connection, found, Generation(max_tokens=4), 2)
    datasets = {name: summarise(own) for name, own in answers_by("dataset", found, answers).items()}
    assert set(datasets) == {"a", "b"} and macro_tau(datasets) == 2.0
    assert datasets["a"].acceptance_by_position == [1.0]


def test_ask_streams_the_answer_to_standard_output(server: SupervisedServer) -> None:
    result = dspark(server, "ask", "How?", "--statistics")
    assert (result.returncode, result.stdout) == (0, "1:How?\n")
    assert "6 tokens" in result.stderr


def test_ask_reads_the_question_from_standard_input(server: SupervisedServer) -> None:
    assert dspark(server, "ask", stdin="Why?").stdout == "1:Why?\n"


def test_ask_says_what_the_server_refused(server: SupervisedServer) -> None:
    result = dspark(server, "ask", "refuse")
    assert (result.returncode, result.stderr) == (2, "dspark: INVALID_ARGUMENT: not today\n")


def test_a_probe_of_a_living_server_succeeds_in_silence(server: SupervisedServer) -> None:
    result = dspark(server, "ask", "--probe")
    assert (result.returncode, result.stdout) == (0, "")


def test_chat_sends_the_whole_conversation_and_leaves_refused_turns_out(server: SupervisedServer) -> None:
    result = dspark(server, "chat", stdin="refuse\nfirst\nsecond\n/new\nthird\n")
    assert result.returncode == 0
    answers = [line for line in result.stdout.splitlines() if line[:2] in ("1:", "3:")]
    assert answers == ["1:first", "3:second", "1:third"]
    assert "INVALID_ARGUMENT: not today" in result.stdout


def test_chat_colours_accepted_drafts_when_asked_to(server: SupervisedServer) -> None:
    shown = dspark(server, "chat", "--show-drafts", stdin="hi\n", FORCE_COLOR="1").stdout
    assert f"1{GREEN}:\x1b[0mh{GREEN}i\x1b[0m" in shown
    assert GREEN not in dspark(server, "chat", stdin="hi\n", FORCE_COLOR="1").stdout


def test_a_conversation_over_one_connection_may_have_many_streams(connection: Connection) -> None:
    streams = [iter(connection.generate(Generation(messages=[Message("user", "x" * 50)]))) for _ in range(20)]
    firsts = [next(stream).text for stream in streams]
    assert firsts == ["1"] * 20
    assert all("".join(chunk.text for chunk in stream) == ":" + "x" * 50 for stream in streams)


def test_a_server_that_went_away_is_an_error_and_no_hanging(server: SupervisedServer) -> None:
    with Connection("127.0.0.1:1") as nowhere, pytest.raises(RemoteError, match="UNAVAILABLE"):
        list(nowhere.generate(Generation(text_input="x")))
