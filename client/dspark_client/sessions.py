"""A server to talk to: the one that runs, or one started for as long as it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from dspark.settings import ServingSettings
from rich.console import Console

from dspark_client import paths
from dspark_client.deployment import check_deployment
from dspark_client.server import running_server
from dspark_client.server_run import listens
from dspark_client.transport import Connection


@dataclass(frozen=True)
class OwnServer:
    """A started server, with a connection to it."""

    connection: Connection
    metrics_address: str


@contextmanager
def own_server(settings: ServingSettings) -> Iterator[OwnServer]:
    """A server on free ports for the length of the block. Raises ConfigurationError or ServerError."""
    check_deployment(settings)
    with ExitStack() as stack:
        with Console(stderr=True).status("starting a server"):
            server = stack.enter_context(running_server(settings, paths.model_repository()))
        yield OwnServer(stack.enter_context(Connection(server.grpc_address)), server.metrics_address)


@contextmanager
def any_server(address: str, settings: ServingSettings) -> Iterator[Connection]:
    """A connection to the server at `address`; where nothing listens there, to one of our own.

    For a question or a chat our own does without a throughput curve, if there is none.
    """
    if listens(address):
        with Connection(address) as connection:
            yield connection
        return
    with own_server(replace(settings, allow_unprofiled=True)) as server:
        yield server.connection
