"""`dspark ask`: one prompt, the answer as it comes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dspark_client.transport import Connection, Generation


def ask(connection: Connection, generation: Generation) -> Mapping[str, Any]:
    """Print the answer to standard output while it comes; returns the server's statistics. Raises RemoteError."""
    statistics: Mapping[str, Any] = {}
    for chunk in connection.generate(generation):
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
        statistics = chunk.statistics or statistics
    print(flush=True)
    return statistics


def summary(statistics: Mapping[str, Any]) -> str:
    """One line on an answer: its tokens, how many a round brought (tau), and its speed."""
    tokens, rounds, seconds = statistics["output_tokens"], statistics["rounds"], statistics["total_ms"] / 1e3
    tau = statistics["tau"]
    per_round = "" if tau is None else f", {rounds} rounds of {tau:.2f} tokens"
    return f"{tokens} tokens{per_round}, {tokens / seconds:.1f} tokens/s, first after {statistics['ttft_ms']:.0f} ms"
