"""Errors of the client side: a server that cannot live, and an answer that came back as an error."""

from __future__ import annotations

from dspark.errors import DSparkError


class ServerError(DSparkError):
    """The supervised server did not start, or died too often to be restarted again."""


class RemoteError(DSparkError):
    """A server refused or dropped a request; `code` is the gRPC status name, such as INVALID_ARGUMENT."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details
