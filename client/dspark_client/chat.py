"""`dspark chat`: a conversation in the terminal, with the origin of every token in colour if wanted."""

from __future__ import annotations

import readline  # noqa: F401 - gives input() line editing and history
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from dspark_client.ask import summary
from dspark_client.errors import RemoteError
from dspark_client.transport import ACCEPTED, BONUS, CORRECTION, FIRST, Chunk, Connection, Generation, Message

STYLES = {FIRST: "", ACCEPTED: "green", CORRECTION: "red", BONUS: "cyan"}
LEGEND = (("accepted draft", ACCEPTED), ("correction", CORRECTION), ("bonus", BONUS))
HELP = "An empty line or Ctrl-D ends it, /new starts afresh, Ctrl-C interrupts an answer."


class Chat:
    """One conversation; what could not be answered is not part of it."""

    def __init__(self, connection: Connection, settings: Generation, show_drafts: bool, system: str = "") -> None:
        self._connection, self._settings, self._show_drafts = connection, settings, show_drafts
        self._opening = (Message("system", system),) if system else ()
        self._messages = self._opening
        self._console = Console(highlight=False, soft_wrap=True)

    def run(self) -> None:
        """Read turns from standard input until it ends."""
        self._console.print(HELP, style="dim")
        if self._show_drafts:
            self._console.print(Text.assemble(*((f"{name}  ", STYLES[origin]) for name, origin in LEGEND)))
        for line in _lines():
            if line == "/new":
                self._messages = self._opening
                continue
            self._turn(line)

    def _turn(self, line: str) -> None:
        asked = (*self._messages, Message("user", line))
        stream = self._connection.generate(self._settings.with_messages(asked))
        answer, last = [], Chunk()
        try:
            for chunk in stream:
                self._console.print(self._coloured(chunk), end="")
                answer.append(chunk.text)
                last = chunk
        except KeyboardInterrupt:
            stream.cancel()
            self._console.print(" [interrupted]", markup=False, style="dim")
        except RemoteError as error:
            self._console.print(f"\n{error}", markup=False, style="red")
            return
        self._messages = (*asked, Message("assistant", "".join(answer)))
        self._console.print()
        if last.statistics:
            self._console.print(summary(last.statistics), markup=False, style="dim")

    def _coloured(self, chunk: Chunk) -> Text:
        if not self._show_drafts or not chunk.token_origins:
            return Text(chunk.text)
        pieces = zip(chunk.token_texts, chunk.token_origins, strict=True)
        return Text.assemble(*((text, STYLES[origin]) for text, origin in pieces))


def _lines() -> Iterator[str]:
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if not line:
            return
        yield line
