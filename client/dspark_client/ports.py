"""The three ports of a Triton server."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass, fields

from dspark.errors import ConfigurationError


@dataclass(frozen=True)
class Ports:
    """Triton's own defaults."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


@dataclass(frozen=True)
class Addresses:
    """Where a server is reached, each as host:port."""

    http: str
    grpc: str
    metrics: str

    @staticmethod
    def local(host: str, ports: Ports) -> Addresses:
        """From this machine; a server that listens everywhere is reached through the loopback."""
        host = "127.0.0.1" if host == "0.0.0.0" else host
        return Addresses(f"{host}:{ports.http}", f"{host}:{ports.grpc}", f"{host}:{ports.metrics}")


def free_ports(host: str = "127.0.0.1") -> Ports:
    """Three ports that nothing listens on now."""
    with ExitStack() as stack:
        numbers = []
        for _ in fields(Ports):
            listener = stack.enter_context(socket.socket())
            listener.bind((host, 0))
            numbers.append(listener.getsockname()[1])
    return Ports(*numbers)


def require_free(ports: Ports, host: str) -> None:
    """Raises ConfigurationError naming the first port that cannot be bound, before a server is started on it."""
    for field in fields(Ports):
        port = getattr(ports, field.name)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
            except (OSError, OverflowError) as error:
                raise ConfigurationError(
                    f"{field.name} port {port} on {host} cannot be used ({error}): stop what listens there, "
                    f"or choose another with --{field.name}-port"
                ) from error
