"""The `dspark` command: options and help; the work of each verb is in its own module, imported when it runs."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer
from dspark.errors import DSparkError
from typer.exceptions import Abort, Exit, TyperException

from dspark_client.paths import DEFAULT_CHECKPOINT

BAD_INPUT, INTERRUPTED = 2, 130
DEFAULT_GRPC = "127.0.0.1:8001"

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="DSpark speculative decoding on Triton. First steps: 'make serve', then 'dspark ask \"Hello\"'.",
)


class Engine(str, Enum):
    """int8 weights, the fast default; fp32, the reference."""

    int8 = "int8"
    fp32 = "fp32"


EngineOption = Annotated[Engine, typer.Option(help="Precision of the built engine.")]
CheckpointOption = Annotated[str, typer.Option(help="Name of a prepared checkpoint, or a Hugging Face folder.")]

PolicyOption = Annotated[str, typer.Option(help="How many drafts are verified: none, full, fixed:N or threshold:C.")]


@app.command()
def serve(
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    policy: PolicyOption = "threshold:0.3",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are refused at once.")] = 64,
    max_slots: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 32,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of the target; 0 takes all cores.")] = 0,
) -> None:
    """Serve the built engines until Ctrl-C.

    Example: dspark serve --engine int8 --policy threshold:0.3
    """
    from dspark.settings import ServingSettings

    from dspark_client import paths
    from dspark_client.ports import Ports
    from dspark_client.serve import serve as run

    folder = paths.require_built(paths.engine_folder(checkpoint, engine.value))
    settings = ServingSettings(str(folder.root), policy, max_queue, max_slots, threads=threads)
    run(settings, paths.model_repository(), Ports(http_port, grpc_port, metrics_port), host)


def main() -> None:
    """Entry point: every foreseeable error ends with one line and status 2."""
    try:
        status = app(standalone_mode=False)
    except TyperException as error:
        sys.exit(_complain(f"{error.format_message()} (see 'dspark --help')"))
    except DSparkError as error:
        sys.exit(_complain(str(error)))
    except Exit as error:
        sys.exit(error.exit_code)
    except (Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> int:
    print(f"dspark: {message}", file=sys.stderr)
    return BAD_INPUT
