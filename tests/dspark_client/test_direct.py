"""A request's output on its way from the round loop to whoever asked in the same process."""

from __future__ import annotations

import pytest
from dspark.errors import EngineError
from dspark.orchestrator import Chunk, FinishReason, Origin
from dspark_client.direct import Inbox
from dspark_client.transport import ACCEPTED, FIRST

FIRST_CHUNK = Chunk("a", (7,), ("a",), (Origin.FIRST,), ())
LAST_CHUNK = Chunk("bc", (8, 9), ("b", "c"), (Origin.ACCEPTED, Origin.BONUS), (), FinishReason.STOP, '{"rounds": 1}')


def test_chunks_come_as_a_server_sends_them_and_end_with_the_last() -> None:
    inbox = Inbox()
    inbox.send(FIRST_CHUNK)
    inbox.finish(LAST_CHUNK)
    first, last = inbox.chunks(None)
    assert (first.token_ids, first.token_origins, first.finish_reason, first.statistics) == ((7,), (FIRST,), "", None)
    assert (last.text, last.token_origins[0], last.finish_reason) == ("bc", ACCEPTED, "stop")
    assert last.statistics == {"rounds": 1}


def test_a_failure_is_raised_after_what_came_before_it() -> None:
    inbox = Inbox()
    inbox.send(FIRST_CHUNK)
    inbox.fail(EngineError("the target failed"))
    chunks = inbox.chunks(None)
    assert next(chunks).text == "a"
    with pytest.raises(EngineError, match="the target failed"):
        next(chunks)


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    inbox = Inbox()
    with pytest.raises(EngineError, match="not complete after 0 s"):
        list(inbox.chunks(0.0))
    assert inbox.is_cancelled()


def test_whoever_stops_listening_cancels() -> None:
    inbox = Inbox()
    inbox.send(FIRST_CHUNK)
    chunks = inbox.chunks(None)
    next(chunks)
    assert not inbox.is_cancelled()
    chunks.close()
    assert inbox.is_cancelled()
