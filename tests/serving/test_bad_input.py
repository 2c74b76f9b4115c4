"""Bad input and bad clients against the running server: clear errors, nobody else disturbed, every slot free after."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import CONTEXT, QUEUE, SLOTS, VOCABULARY, metrics
from dspark_client.errors import RemoteError
from dspark_client.server import SupervisedServer
from dspark_client.transport import Connection, Generation

pytestmark = pytest.mark.serving

WITNESS = Generation(text_input="the witness", max_tokens=200, temperature=1.0, seed=99, ignore_eos=True)


def texts(*values: str | bytes) -> np.ndarray:
    return np.array([value.encode() if isinstance(value, str) else value for value in values], np.object_)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def outcome(connection: Connection, generation: Generation) -> list[int] | RemoteError:
    try:
        return [token for chunk in connection.generate(generation, timeout_s=120) for token in chunk.token_ids]
    except RemoteError as error:
        return error


def wait_until_idle(server: SupervisedServer) -> None:
    """All slots and KV blocks are free; the metrics tell within a second, so this ends unless one leaks."""
    while True:
        seen = metrics(server)
        if all(seen[f"dspark_{name}"] == 0 for name in ("active_sequences", "waiting_sequences", "kv_blocks_in_use")):
            return
        threading.Event().wait(0.1)


@pytest.fixture(scope="module")
def undisturbed(tiny_server: SupervisedServer) -> list[int]:
    """What the witness says when it is alone."""
    with Connection(tiny_server.grpc_address) as connection:
        said = outcome(connection, WITNESS)
    assert isinstance(said, list) and len(said) == 200
    return said


@pytest.fixture(autouse=True)
def nothing_leaks(tiny_server: SupervisedServer) -> Iterator[None]:
    yield
    wait_until_idle(tiny_server)


PROMPT = {"text_input": texts("hello")}
REFUSED = {
    "no prompt": ({"max_tokens": ints(5)}, "exactly one of text_input, input_ids, messages"),
    "two prompts": (PROMPT | {"input_ids": ints(5)}, "text_input and input_ids"),
    "empty text": ({"text_input": texts("")}, "text_input is empty"),
    "empty ids": ({"input_ids": ints()}, "input_ids is empty"),
    "prompt beyond the context": ({"text_input": texts("x" * (CONTEXT + 1))}, f"in the context of {CONTEXT}"),
    "prompt and output beyond the context": (PROMPT | {"max_tokens": ints(CONTEXT)}, "at most 251 fit"),
    "max_tokens 0": (PROMPT | {"max_tokens": ints(0)}, "max_tokens is 0"),
    "max_tokens negative": (PROMPT | {"max_tokens": ints(-5)}, "max_tokens is -5"),
    "temperature negative": (PROMPT | {"temperature": floats(-1)}, "temperature is -1"),
    "temperature NaN": (PROMPT | {"temperature": floats(np.nan)}, "temperature is nan"),
    "temperature infinite": (PROMPT | {"temperature": floats(np.inf)}, "temperature is inf"),
    "top_p 0": (PROMPT | {"top_p": floats(0)}, "top_p is 0"),
    "top_p 2": (PROMPT | {"top_p": floats(2)}, "top_p is 2"),
    "unknown parameter": (PROMPT | {"sampling_parameters": texts('{"temprature": 1}')}, "'temprature' is not known"),
    "malformed JSON": (PROMPT | {"sampling_parameters": texts('{"max_tokens": ')}, "sampling_parameters is not JSON"),
    "malformed messages": ({"messages": texts("[{]")}, "messages is not JSON"),
    "wrong dtype": (PROMPT | {"max_tokens": np.array([5.0])}, "data-type is 'FP64'"),
    "wrong shape": (PROMPT | {"max_tokens": np.array([[5]], np.int32)}, "shape"),
    "wrong length": (PROMPT | {"max_tokens": ints(5, 6)}, "shape"),
    "unknown input": (PROMPT | {"max_tokns": ints(5)}, "max_tokns"),
    "invalid UTF-8": ({"text_input": texts(b"caf\xe9")}, "not valid UTF-8"),
    "token beyond the vocabulary": ({"input_ids": ints(1, VOCABULARY)}, f"{VOCABULARY} is no token"),
    "token negative": ({"input_ids": ints(-1)}, "-1 is no token"),
    "1,000 stop strings": (PROMPT | {"stop_words": texts(*["stop"] * 1000)}, "stop_words holds 1000 strings"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_an_invalid_argument_that_says_what_was_wrong(connection: Connection, name: str) -> None:
    tensors, message = REFUSED[name]
    with pytest.raises(RemoteError, match=r"(?i)INVALID_ARGUMENT") as refused:
        list(connection.send(tensors, timeout_s=60))
    assert message in str(refused.value)


def test_bad_json_over_http_is_a_client_error(tiny_server: SupervisedServer) -> None:
    url = f"http://{tiny_server.http_address}/v2/models/dspark/generate"
    for body, message in (
        (b'{"text_input": "x"', "JSON"),
        (json.dumps({"text_input": "x", "temprature": 1}).encode(), "'temprature' is not known"),
        (json.dumps({"text_input": "x", "parameters": {"top_p": 2}}).encode(), "top_p is 2"),
        (json.dumps({"text_input": "x", "max_tokens": 0}).encode(), "max_tokens is 0"),
        (json.dumps({"text_input": ["x", "y"]}).encode(), "shape"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, body, timeout=60)
        assert refused.value.code >= 400        # what does not even parse is a 500 of Triton's own
        assert message in refused.value.read().decode()


def test_bad_input_leaves_other_streams_untouched(connection: Connection, undisturbed: list[int]) -> None:
    with ThreadPoolExecutor(1) as pool:
        witness = pool.submit(outcome, connection, WITNESS)
        for tensors, _ in REFUSED.values():
            with pytest.raises(RemoteError):
                list(connection.send(tensors, timeout_s=60))
        assert witness.result() == undisturbed


def test_a_client_that_disconnects_mid_stream_costs_nobody_anything(
    tiny_server: SupervisedServer, connection: Connection, undisturbed: list[int]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        witness = pool.submit(outcome, connection, WITNESS)
        for number in range(12):
            with Connection(tiny_server.grpc_address) as leaving:
                stream = iter(leaving.generate(Generation(
                    text_input="x" * (number + 1), max_tokens=240, ignore_eos=True, temperature=1.0, seed=number,
                ), timeout_s=60))
                next(stream)
        assert witness.result() == undisturbed


def test_an_http_client_that_disconnects_gives_its_slot_back(tiny_server: SupervisedServer) -> None:
    url = f"http://{tiny_server.http_address}/v2/models/dspark/generate_stream"
    body = json.dumps({"text_input": "x", "max_tokens": 240, "stream": True, "ignore_eos": True}).encode()
    with urllib.request.urlopen(url, body, timeout=60) as answer:
        answer.readline()


def test_200_requests_at_once_are_served_or_refused(
    tiny_server: SupervisedServer, connection: Connection, undisturbed: list[int]
) -> None:
    barrier = threading.Barrier(201)

    def run(generation: Generation) -> list[int] | RemoteError:
        barrier.wait()
        return outcome(connection, generation)

    requests = [
        Generation(text_input="x" * (n % 7 + 1), max_tokens=200, ignore_eos=True, temperature=1.0, seed=n)
        for n in range(200)
    ]
    with ThreadPoolExecutor(201) as pool:
        witness, *others = pool.map(run, [WITNESS, *requests])
    refused = [other for other in others if isinstance(other, RemoteError)]
    served = [other for other in others if isinstance(other, list)]
    assert refused and all("UNAVAILABLE" in str(error) and "waiting" in str(error) for error in refused)
    assert len(served) >= QUEUE
    assert all(len(tokens) == 200 for tokens in served)
    assert isinstance(witness, RemoteError) or witness == undisturbed
    wait_until_idle(tiny_server)
    assert len(refused) + len(served) == 200 and SLOTS + QUEUE <= 200
