"""The built engines in this process, asked as a server is asked, and without one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

from dspark import orchestrator as library
from dspark.deployment import deploy
from dspark.engines.contract import EngineFolder
from dspark.engines.loading import load_drafter, load_target
from dspark.errors import DSparkError, EngineError
from dspark.settings import ServingSettings
from rich.console import Console

from dspark_client.deployment import check_deployment
from dspark_client.transport import Chunk, Generation


class DirectEngines:
    """An orchestrator of our own; may be shared by threads, each request being a stream of its own."""

    def __init__(self, orchestrator: library.Orchestrator, rules: library.RequestRules) -> None:
        self._orchestrator = orchestrator
        self._rules = rules

    def generate(self, generation: Generation, timeout_s: float | None = None) -> Iterator[Chunk]:
        """Answer a request as the `dspark` model does, by the same parsing and the same loop.

        Iterating raises InvalidRequestError for a request that can never succeed, OverloadedError when the queue is
        full, EngineError when an engine fails or the answer takes longer than `timeout_s`.
        """
        request = library.parse_request(library.RequestTensors(**generation.tensors()), self._rules)
        inbox = Inbox()
        self._orchestrator.submit(request, inbox)
        return inbox.chunks(timeout_s)


class Inbox:
    """A request's output, put in by the round loop and taken out by whoever asked (orchestrator.Sink)."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[library.Chunk | DSparkError] = SimpleQueue()
        self._abandoned = False

    def send(self, chunk: library.Chunk) -> None:
        self._queue.put(chunk)

    def finish(self, chunk: library.Chunk) -> None:
        self._queue.put(chunk)

    def fail(self, error: DSparkError) -> None:
        self._queue.put(error)

    def is_cancelled(self) -> bool:
        return self._abandoned

    def chunks(self, timeout_s: float | None) -> Iterator[Chunk]:
        """Everything up to the last chunk. Raises what the request failed with; EngineError after `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        finished = False
        try:
            while not finished:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    found = self._queue.get(timeout=left)
                except Empty:
                    raise EngineError(f"the answer was not complete after {timeout_s:g} s") from None
                if isinstance(found, DSparkError):
                    raise found
                finished = found.finish_reason is not None
                yield _chunk(found)
        finally:
            self._abandoned = True


@contextmanager
def direct_engines(settings: ServingSettings) -> Iterator[DirectEngines]:
    """The engines that a server with these settings would run, for the length of the block.

    Raises ConfigurationError when the engine folder is not complete or the policy does not fit.
    """
    check_deployment(settings)
    folder = EngineFolder(Path(settings.engine_folder))
    with ExitStack() as stack:
        with Console(stderr=True).status("loading the engines"):
            target = stack.enter_context(closing(load_target(folder.target, settings.threads)))
            drafter = stack.enter_context(closing(load_drafter(folder.drafter)))
        deployment = deploy(settings, target.step, drafter.step)
        deployment.orchestrator.start()
        stack.callback(deployment.orchestrator.close)
        yield DirectEngines(deployment.orchestrator, deployment.rules)


def _chunk(chunk: library.Chunk) -> Chunk:
    return Chunk(
        text=chunk.text, token_ids=chunk.token_ids, token_texts=chunk.token_texts,
        token_origins=tuple(map(int, chunk.token_origins)), log_probs=chunk.log_probs,
        finish_reason="" if chunk.finish_reason is None else chunk.finish_reason.value,
        statistics=json.loads(chunk.statistics) if chunk.statistics else None,
    )
