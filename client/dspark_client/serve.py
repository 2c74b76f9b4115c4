"""`dspark serve`: a supervised server in the foreground, until Ctrl-C or TERM."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

from dspark.settings import ServingSettings
from rich.console import Console

from dspark_client.ports import Ports
from dspark_client.server import SupervisedServer

LOOK_EVERY_S = 0.5
EXAMPLE = """curl -N http://{http}/v2/models/dspark/generate_stream \\
       -d '{{"text_input": "The capital of France is", "max_tokens": 16, "stream": true}}'"""


def serve(settings: ServingSettings, model_repository: Path, ports: Ports, host: str) -> None:
    """Run a server until a signal asks it to stop. Raises ServerError when it cannot be kept alive."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.set())
    console = Console(highlight=False, soft_wrap=True)
    server = SupervisedServer(settings, model_repository, ports, host)
    with console.status("starting Triton and loading the engines"):
        started = server.start(asked)
    if started:
        where = "" if ports == Ports() else f" --address {server.grpc_address}"
        console.print(
            f"ready (process {server.pid})\n"
            f"  HTTP     http://{server.http_address}\n"
            f"  gRPC     {server.grpc_address}\n"
            f"  metrics  http://{server.metrics_address}/metrics\n"
            f"  engine   {settings.engine_folder}\n"
            f"  log      {server.log_file}\n"
            "try, in another terminal:\n"
            f'  .venv/bin/dspark ask "What is the capital of France?"{where}\n'
            f"  {EXAMPLE.format(http=server.http_address)}\n"
            "Ctrl-C stops it.", markup=False,
        )
    try:
        while not asked.wait(LOOK_EVERY_S):
            server.wait(0.0)
    finally:
        console.print("stopping, within a few seconds")
        server.stop()
        console.print("stopped")
