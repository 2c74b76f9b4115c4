"""What a server prints: one file a server in DSPARK_HOME/logs, where only the latest few are kept."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from dspark_client import paths

KEPT = 20
TAIL_LINES = 25


class ServerLog:
    """A fresh log file; the restarts of one server share it."""

    def __init__(self) -> None:
        folder = paths.home() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("triton-*.log"))[:-KEPT]:
            old.unlink(missing_ok=True)
        self.path: Path = folder / f"triton-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}.log"
        self.path.touch()

    def tail(self) -> str:
        """The last lines, headed by the file's name: what to show when a start fails."""
        lines = self.path.read_text(errors="replace").splitlines()
        return "\n".join([f"(end of {self.path})", *lines[-TAIL_LINES:]])
