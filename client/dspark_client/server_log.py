"""What a server prints: one file a server in DSPARK_HOME/logs, where only the latest few are kept."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path

from dspark_client import paths

KEPT = 20
TAIL_LINES = 25
BACKGROUND = re.compile(r"I\d{4} |\| |\+-|$")        # Triton's information lines, its tables, empty lines


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
        """The last warnings, errors and tracebacks, headed by the file's name: what to show when a start fails."""
        lines = [line for line in self.path.read_text(errors="replace").splitlines() if not BACKGROUND.match(line)]
        return "\n".join([f"(from {self.path})", *lines[-TAIL_LINES:]])
