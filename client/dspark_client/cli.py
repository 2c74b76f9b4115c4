"""The `dspark` command: options and help; the work of each verb is in its own module, imported when it runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from dspark.errors import ConfigurationError, DSparkError
from typer.exceptions import Abort, Exit, TyperException

from dspark_client import bench_verbs, calibrate_verb, doctor_verb, profile_verb, train
from dspark_client.options import (
    DEFAULT_GRPC,
    DEFAULT_POLICY,
    LARGEST_SEED,
    AddressOption,
    CheckpointOption,
    ConcurrencyOption,
    Engine,
    EngineOption,
    JsonOption,
    LimitOption,
    MaxTokensOption,
    PolicyOption,
    PromptsOption,
    SeedOption,
    TemperatureOption,
    Verification,
    VerificationOption,
)
from dspark_client.paths import DEFAULT_CHECKPOINT

MISMATCH, BAD_INPUT, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
    help="DSpark speculative decoding on Triton. First steps: 'make serve', then 'dspark ask \"Hello\"'.",
)
app.add_typer(train.app, name="train", help=train.HELP)


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="Name, folder with config.json and safetensors, or hub name.")]
    = DEFAULT_CHECKPOINT,
) -> None:
    """Bring a checkpoint into DSPARK_HOME: the default model (93 MB), or a Llama or Qwen3 folder.

    Example: dspark prepare
    """
    typer.echo(f"{_build_verbs().prepare_checkpoint(source)} is ready")


@app.command()
def build(
    engine: EngineOption = Engine.int8,
    checkpoint: Annotated[str, typer.Option(help="Name, folder or hub name of the target.")] = DEFAULT_CHECKPOINT,
    drafter: Annotated[
        Path | None, typer.Option(help="Folder of a drafter: DeepSpec's form, speculators or SpecForge.")
    ] = None,
    allow_inexact: Annotated[
        bool, typer.Option(help="Accept an engine whose logits depend on the batch on this machine.")
    ] = False,
) -> None:
    """Compile target and drafter; what is built from the same inputs already is kept.

    Example: dspark build --engine fp32
    """
    _build_verbs().build_engine(checkpoint, engine.value, drafter, allow_inexact)


@app.command()
def serve(
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    policy: PolicyOption = DEFAULT_POLICY,
    verification: VerificationOption = Verification.standard,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are refused at once.")] = 64,
    max_slots: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 32,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of the target; 0 takes all cores.")] = 0,
    allow_unprofiled: Annotated[
        bool, typer.Option("--allow-unprofiled", help="Serve adaptive policies without a curve: all is verified.")
    ] = False,
    online: Annotated[bool, typer.Option(help="Correct the curve by what served steps take.")] = True,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Verify whole drafts, commit what the policy would: shows the ceiling.")
    ] = False,
    switchable_policies: Annotated[
        bool, typer.Option("--switchable-policies", help="Let a request change the policy; for benchmarks.")
    ] = False,
) -> None:
    """Serve the built engines until Ctrl-C.

    Example: dspark serve --engine int8 --policy adaptive+lookup
    """
    from dspark_client import paths
    from dspark_client.deployment import check_deployment, serving_settings
    from dspark_client.ports import Ports
    from dspark_client.serve import serve as run

    settings = replace(
        serving_settings(checkpoint, engine.value, policy),
        max_queue=max_queue, max_slots=max_slots, threads=threads, allow_unprofiled=allow_unprofiled,
        online_costs=online, diagnose=diagnose, switchable_policies=switchable_policies,
        verification=verification.value,
    )
    check_deployment(settings)
    run(settings, paths.model_repository(), Ports(http_port, grpc_port, metrics_port), host)


@app.command()
def ask(
    prompt: Annotated[str, typer.Argument(help="The question; - reads it from standard input.")] = "-",
    address: AddressOption = DEFAULT_GRPC,
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: Annotated[float | None, typer.Option(help="Sample among the likeliest tokens of this mass.")] = None,
    seed: SeedOption = None,
    statistics: Annotated[bool, typer.Option("--statistics", help="Print speed and tokens a round to stderr.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Only ask the server for one token: status 0 if it comes.")
    ] = False,
) -> None:
    """Ask one question and stream the answer.

    Example: dspark ask "What is the capital of France?"
    """
    from dspark_client import ask as asking
    from dspark_client.deployment import serving_settings
    from dspark_client.probe import PROBE_TIMEOUT_S
    from dspark_client.probe import probe as probe_server
    from dspark_client.sessions import any_server
    from dspark_client.transport import Generation, Message

    if probe:
        return probe_server(address, PROBE_TIMEOUT_S)
    text = sys.stdin.read() if prompt == "-" else prompt
    generation = Generation(
        messages=[Message("user", text)], max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    with any_server(address, serving_settings(checkpoint, engine.value)) as connection:
        found = asking.ask(connection, generation)
    if statistics and found:
        typer.echo(asking.summary(found), err=True)


@app.command()
def chat(
    address: AddressOption = DEFAULT_GRPC,
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = 0.0,
    top_p: Annotated[float | None, typer.Option(help="Sample among the likeliest tokens of this mass.")] = None,
    seed: SeedOption = None,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour accepted draft tokens, corrections and bonus tokens.")
    ] = False,
) -> None:
    """Talk to the model.

    Example: dspark chat --show-drafts
    """
    from dspark_client.chat import Chat
    from dspark_client.deployment import serving_settings
    from dspark_client.sessions import any_server
    from dspark_client.transport import Generation

    settings = Generation(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    with any_server(address, serving_settings(checkpoint, engine.value)) as connection:
        Chat(connection, settings, show_drafts, system).run()


@app.command()
def evaluate(
    prompts: PromptsOption,
    lossless: Annotated[
        bool, typer.Option("--lossless", help="Compare greedy answers with and without speculation, token by token.")
    ] = False,
    server: Annotated[
        bool, typer.Option("--server", help="Through a Triton server instead of the engines in this process.")
    ] = False,
    engine: EngineOption = Engine.int8,
    checkpoint: CheckpointOption = DEFAULT_CHECKPOINT,
    policy: PolicyOption = "full",
    verification: VerificationOption = Verification.standard,
    limit: LimitOption = None,
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="The same seed gives the same answers.")] = 0,
    block: Annotated[int | None, typer.Option(min=1, help="Verify at most so many drafts of each block.")] = None,
    blocks: Annotated[str, typer.Option(help="Measure tau at each of these --block lengths too, as 1,3,5,7.")] = "",
    concurrency: ConcurrencyOption = "8",
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Leave out bad lines of the prompts files.")
    ] = False,
    json_file: JsonOption = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write tables of the result here.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw acceptance by position here, one line a domain.")
    ] = None,
) -> None:
    """Measure accepted tokens a round (tau), or prove with --lossless that speculation changes no answer.

    Acceptance by position is conditional: of the drafts whose predecessors in the block were all accepted.

    Example: dspark evaluate --lossless --engine fp32 --prompts client/prompts/sample.jsonl --concurrency 1,16
    """
    from dspark_client.acceptance_report import check_plot, markdown, plot
    from dspark_client.deployment import serving_settings
    from dspark_client.evaluate import evaluate_acceptance, evaluate_lossless
    from dspark_client.prompts import read_prompts
    from dspark_client.reporting import parse_numbers, report, write
    from dspark_client.transport import Generation

    found = read_prompts(prompts, limit, _say_skipped if skip_bad_lines else None)
    levels, sweep = parse_numbers("concurrency", concurrency), parse_numbers("blocks", blocks) if blocks else []
    settings = replace(serving_settings(checkpoint, engine.value, policy), verification=verification.value)
    if lossless:
        if temperature or sweep or markdown_file or plot_file:
            raise ConfigurationError(
                "--lossless compares greedy answers: leave out --temperature, --blocks, --markdown and --plot"
            )
        compared = evaluate_lossless(settings, found, max_tokens, levels, block, server)
        report(compared, json_file)
        raise typer.Exit(MISMATCH if compared.mismatched_tokens else 0)
    if plot_file is not None:
        check_plot(plot_file)
    generation = Generation(max_tokens=max_tokens, temperature=temperature, seed=seed, max_draft_tokens=block)
    measured = evaluate_acceptance(settings, found, generation, max(levels), sweep, server)
    report(measured, json_file)
    if markdown_file is not None:
        write(markdown_file, markdown(measured))
    if plot_file is not None:
        plot(measured, plot_file)


app.command()(calibrate_verb.calibrate)
app.command()(profile_verb.profile)
app.command()(doctor_verb.doctor)
app.command()(bench_verbs.bench)
app.command(name="report")(bench_verbs.draw_report)


def _say_skipped(line: str) -> None:
    typer.echo(f"skipped {line}", err=True)


def _build_verbs() -> ModuleType:
    """The module that needs torch. Raises ConfigurationError where only the serving requirements are installed."""
    try:
        from dspark_client import build
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is missing, which building needs: run 'make setup'") from error
    return build


def spread(arguments: list[str]) -> list[str]:
    """`--prompts A B C` as `--prompts A --prompts B --prompts C`."""
    spread_out, in_prompts = [], False
    for argument in arguments:
        if in_prompts and not argument.startswith("-") and spread_out[-1] != "--prompts":
            spread_out.append("--prompts")
        in_prompts = argument == "--prompts" or (in_prompts and not argument.startswith("-"))
        spread_out.append(argument)
    return spread_out


def main() -> None:
    """Entry point: every foreseeable error ends with one line and status 2."""
    try:
        status = app(spread(sys.argv[1:]) or ["--help"], standalone_mode=False)
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
