"""The orchestrator's own thread: requests from many threads, shutting down, faults that must not end it."""

from __future__ import annotations

import threading
import time

import pytest
from dspark.errors import EngineError, OverloadedError
from dspark.orchestrator import Orchestrator
from dspark.scheduling import make_policy
from dspark.settings import ServingSettings
from toy_engines import GAMMA, Listener, engines, plain_decoding, read_tokenizer, request

PATIENCE_S = 60


@pytest.fixture
def running(tmp_path):
    """An orchestrator with its thread, and the reports of its rounds."""
    reports = []
    tokenizer, scheduler = read_tokenizer(tmp_path), make_policy("full", GAMMA)
    orchestrator = Orchestrator(engines()[2], tokenizer, scheduler, ServingSettings(""), observer=reports.append)
    orchestrator.start()
    yield orchestrator, reports
    orchestrator.close()


def wait(*listeners):
    deadline = time.monotonic() + PATIENCE_S
    while not all(listener.over for listener in listeners):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_many_threads_submit_and_each_gets_its_own_answer(running):
    orchestrator, reports = running
    requests = [request("x" * (n + 1), max_tokens=10 + n) for n in range(16)]
    listeners = [Listener() for _ in requests]
    threads = [
        threading.Thread(target=orchestrator.submit, args=pair) for pair in zip(requests, listeners, strict=True)
    ]
    for thread in threads:
        thread.start()
    wait(*listeners)
    for thread in threads:
        thread.join()
    assert [listener.tokens for listener in listeners] == [plain_decoding(one) for one in requests]
    assert sum(report.output_tokens for report in reports) == sum(one.max_tokens for one in requests)
    assert max(report.sequences for report in reports) > 1


def test_closing_ends_everyone_with_an_overload_error(running):
    orchestrator, _ = running
    listeners = [Listener() for _ in range(12)]
    for listener in listeners:
        orchestrator.submit(request(max_tokens=180), listener)
    orchestrator.close()
    assert all(listener.finished or isinstance(listener.error, OverloadedError) for listener in listeners)
    assert any(listener.error for listener in listeners)
    with pytest.raises(OverloadedError, match="shutting down"):
        orchestrator.submit(request(), Listener())
    orchestrator.close()


def test_a_fault_of_our_own_ends_its_requests_but_not_the_loop(running):
    orchestrator, reports = running
    schedule = orchestrator.loop.schedule
    orchestrator.loop.schedule = lambda drafts: 1 / 0
    doomed, healthy = Listener(), Listener()
    orchestrator.submit(request(), doomed)
    wait(doomed)
    assert isinstance(doomed.error, EngineError) and "ZeroDivisionError" in str(doomed.error)
    orchestrator.loop.schedule = schedule
    orchestrator.submit(request(), healthy)
    wait(healthy)
    assert healthy.finished
    assert reports[-1].kv_blocks_used == 0
