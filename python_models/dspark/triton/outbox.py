"""Responses leave on a thread of their own, while the round loop waits for its engines.

A send costs 0.3 ms and more, most of it waiting for the server's process; eight streams would add that to every round.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

LOG = logging.getLogger("dspark")
CLOSE_TIMEOUT_S = 2.0


class Outbox:
    """Runs errands one after the other, in the order in which they came; what one raises is logged."""

    def __init__(self) -> None:
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dspark-outbox", daemon=True)
        self._thread.start()

    def put(self, errand: Callable[[], None]) -> None:
        self._errands.put(errand)

    def close(self) -> None:
        """Return once everything has left, or after CLOSE_TIMEOUT_S: a server that goes away may never take it."""
        self._errands.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                errand()
            except Exception:         # a client that cannot be reached is no reason to stop for the others
                LOG.exception("a response could not be sent")
