"""`dspark train`: the three stages of training a drafter, each resumable, in DSPARK_HOME/training/CHECKPOINT."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from dspark.errors import ConfigurationError

from dspark_client import paths
from dspark_client.compare import compare

if TYPE_CHECKING:
    from dspark_build.progress import Progress
    from dspark_build.training import Recorder, Validation

DATA = "data"                        # the folder of responses and states, unless another is named
SEQUENCE_TOKENS = 320                # header and message, of self-written prompts
DEFAULT_TAPS = 5                     # as many as the published drafters tap, spread over the target's layers

app = typer.Typer()
app.command()(compare)
HELP = "Train a drafter: generate responses, cache hidden states, fit. Every stage can be resumed."

CheckpointOption = Annotated[str, typer.Option(help="Name of the prepared target checkpoint.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="CPU threads.")]
DeviceOption = Annotated[str, typer.Option(help="Torch device: cpu, cuda.")]
AllThreadsOption = Annotated[int, typer.Option(min=0, help="CPU threads; 0 takes all cores.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Sequences decoded together.")]
RecordingOption = Annotated[str, typer.Option("--engine", help="Weights of the target that answers: int8 or fp32.")]
DataOption = Annotated[str, typer.Option(help="Name of the data: generate adds to it, fit trains on it.")]
TapsOption = Annotated[str, typer.Option(help="Tapped target layers, such as 1,8,14,21,27; empty: five, spread out.")]


@app.callback()
def needs_torch() -> None:
    """Raises ConfigurationError where only the serving requirements are installed."""
    if find_spec("torch") is None:
        raise ConfigurationError("torch is missing, which training needs: run 'make setup'")


@app.command()
def prompts(
    output: Annotated[Path, typer.Option(help="The prompts file to write.")],
    count: Annotated[int, typer.Option(min=1, help="User messages to sample.")] = 500,
    domain: Annotated[str, typer.Option(help="Domain written beside each prompt.")] = "chat",
    opening: Annotated[list[str] | None, typer.Option(help="What messages begin with, in turn.")] = None,
    temperature: float = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longer messages are left out.")] = 128,
    engine: RecordingOption = "int8",
    taps: TapsOption = "",
    batch: BatchOption = 64,
    checkpoint: CheckpointOption = paths.DEFAULT_CHECKPOINT,
    threads: AllThreadsOption = 0,
    seed: int = 0,
) -> None:
    """Let the target write user messages itself, where no prompts are at hand.

    Example: dspark train prompts --output code.jsonl --domain code --opening "Write a Python function"
    """
    from dspark.orchestrator.tokenizer import Tokenizer
    from dspark_build.progress import progress_bars
    from dspark_build.training import SelfWrittenConfig, write_prompts

    config = SelfWrittenConfig(
        output=output, count=count, domain=domain, openings=tuple(opening or [""]), temperature=temperature,
        max_tokens=max_tokens, batch=batch, seed=seed,
    )  # fmt: skip
    typer.echo(config)
    target = _target(checkpoint)
    with progress_bars() as progress:
        recorder = _recorder(target, engine, _taps(taps, checkpoint), batch, SEQUENCE_TOKENS, threads, progress)
        written = write_prompts(config, recorder, Tokenizer(target), progress)
    typer.echo(f"{len(written)} of {count} messages are in {output}")


@app.command()
def generate(
    prompts: Annotated[list[Path], typer.Option("--prompts", help="Files of JSON lines {id, domain, turns}.")],
    tokens: Annotated[int, typer.Option(min=0, help="Stop at so many response tokens; 0: answer all prompts.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Take at most so many prompts of each file; 0: all.")] = 0,
    temperatures: Annotated[str, typer.Option(help="Dealt to the prompts in turn.")] = "0,1,0,0.7",
    samples: Annotated[int, typer.Option(min=1, help="Responses a prompt.")] = 1,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer prompts are left out.")] = 320,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 256,
    batch: BatchOption = 64,
    record: Annotated[
        bool, typer.Option(help="Keep the hidden states too, which makes the cache stage unnecessary.")
    ] = True,
    taps: TapsOption = "",
    engine: RecordingOption = "int8",
    data: DataOption = DATA,
    checkpoint: CheckpointOption = paths.DEFAULT_CHECKPOINT,
    threads: AllThreadsOption = 0,
    seed: int = 0,
    skip_bad_lines: Annotated[bool, typer.Option(help="Leave out bad lines of the prompts files.")] = False,
) -> None:
    """Let the target answer the training prompts; prompts answered before are not asked again.

    Example: dspark train generate --prompts prompts.jsonl --tokens 300000
    """
    from dspark.orchestrator.tokenizer import Tokenizer
    from dspark_build.progress import progress_bars
    from dspark_build.training import GenerateConfig, StateWriter, generate_responses

    target, tap_ids = _target(checkpoint), _taps(taps, checkpoint)
    config = GenerateConfig(
        prompts=tuple(prompts),
        output=_responses(checkpoint, data),
        limit=limit,
        temperatures=tuple(_numbers(temperatures, float, "temperatures")),
        samples_per_prompt=samples,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_tokens,
        batch=batch,
        response_tokens=tokens,
        seed=seed,
        skip_bad_lines=skip_bad_lines,
    )
    typer.echo(config)
    states = StateWriter.for_target(target, tap_ids, _states(checkpoint, data)) if record else None
    if states:
        typer.echo(f"states of taps {list(tap_ids)}: {states.source.bytes_per_row} bytes a token, in {states.folder}")
        states.check_room(tokens)
    with progress_bars() as progress:
        longest = max_prompt_tokens + max_tokens
        recorder = _recorder(target, engine, tap_ids, batch, longest, threads, progress)
        result = generate_responses(config, recorder, Tokenizer(target), progress, states)
    for line in result.skipped:
        typer.echo(f"skipped {line}", err=True)
    typer.echo(
        f"{result.responses} responses, {result.response_tokens} tokens, {result.tokens_per_second:.0f} tokens/s, "
        f"in {config.output}"
    )


@app.command()
def cache(
    taps: TapsOption = "",
    data: DataOption = DATA,
    checkpoint: CheckpointOption = paths.DEFAULT_CHECKPOINT,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 1,
) -> None:
    """Compute the target's hidden states for all responses; says what they take before it starts.

    Example: dspark train cache
    """
    from dspark_build.progress import progress_bars
    from dspark_build.training import CacheConfig, cache_states, plan_cache

    config = CacheConfig(
        target=_target(checkpoint),
        responses=_responses(checkpoint, data),
        states=_states(checkpoint, data),
        tap_ids=_taps(taps, checkpoint),
        device=device,
        threads=threads,
    )
    typer.echo(config)
    plan = plan_cache(config)
    typer.echo(f"{plan.rows} tokens to do: {plan.bytes / 1e9:.2f} GB of {plan.free_bytes / 1e9:.0f} GB free")
    with progress_bars() as progress:
        result = cache_states(config, progress)
    typer.echo(f"{result.rows} tokens cached in {result.seconds:.0f} s, in {config.states}")


@app.command()
def fit(
    output: Annotated[Path, typer.Option(help="Folder for the trained drafter.")],
    run: Annotated[str, typer.Option(help="Name of the run; a run of that name is resumed.")] = "fit",
    data: DataOption = DATA,
    steps: Annotated[int, typer.Option(min=1, help="Updates in all.")] = 2000,
    minutes: Annotated[float, typer.Option(min=0, help="Stop and save after this time; 0: run all steps.")] = 0,
    start: Annotated[Path | None, typer.Option(help="Drafter folder to start from, instead of the target.")] = None,
    layers: Annotated[str, typer.Option(help="Target layers that the drafter's start as; empty: the last two.")] = "",
    taps: TapsOption = "",
    head: Annotated[str, typer.Option(help="none, vanilla, gated, rnn; eagle3: that baseline instead.")] = "vanilla",
    rank: Annotated[int, typer.Option(min=1, help="Rank of the sequential head.")] = 128,
    block: Annotated[int, typer.Option(min=1, help="Drafted tokens a round, gamma.")] = 7,
    mask_token: Annotated[int | None, typer.Option(help="Token id of the mask; else an unused special token.")] = None,
    learning_rate: float = 6e-4,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences a step.")] = 4,
    anchors: Annotated[int, typer.Option(min=1, help="Blocks a sequence.")] = 32,
    frequent: Annotated[int, typer.Option(min=0, help="Frequent tokens in every step's loss; 0: all.")] = 4096,
    draft_vocabulary: Annotated[
        int, typer.Option(min=0, help="Draft only so many tokens, those most frequent in the data; 0: all.")
    ] = 0,
    losses: Annotated[
        str, typer.Option(help="Weights of cross-entropy, total variation and confidence.")
    ] = "0.1,0.9,1.0",
    validate_every: Annotated[int, typer.Option(min=1, help="Steps between validations.")] = 200,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100,
    sampled: Annotated[int, typer.Option(min=0, help="Other tokens drawn for every step's loss.")] = 2048,
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    checkpoint: CheckpointOption = paths.DEFAULT_CHECKPOINT,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 1,
    seed: int = 0,
) -> None:
    """Train a drafter on the cached states and write it in the published form.

    Example: dspark train fit --output drafter --steps 3000 --minutes 60
    """
    import torch
    from dspark_build.drafters import (
        initialise_drafter,
        initialise_eagle,
        load_any_drafter,
        reduce_vocabulary,
        save_any_drafter,
    )
    from dspark_build.progress import progress_bars
    from dspark_build.training import FitConfig, fit_drafter, plot_curves, response_vocabulary

    folder, target = _folder(checkpoint), _target(checkpoint)
    config = FitConfig(
        target=target, responses=_responses(checkpoint, data), states=_states(checkpoint, data), output=folder / run,
        steps=steps, seconds=60 * minutes, learning_rate=learning_rate, sequences_per_step=sequences,
        anchors_per_sequence=anchors, frequent_tokens=frequent, sampled_tokens=sampled, precision=precision,
        device=device, threads=threads, seed=seed, loss_weights=tuple(_numbers(losses, float, "losses")),
        validate_every=validate_every, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    typer.echo(config.describe())
    if start is not None:
        drafter = load_any_drafter(start, target)
    elif head == "eagle3":
        drafter = initialise_eagle(target, target_layer_ids=_taps(taps, checkpoint), block_size=block, seed=seed)
    else:
        drafter = initialise_drafter(
            target,
            target_layer_ids=_taps(taps, checkpoint),
            start_layers=_numbers(layers, int, "layers") or range(_layers(checkpoint) - 2, _layers(checkpoint)),
            block_size=block,
            markov_head_type=head,
            markov_rank=rank,
            mask_token_id=mask_token,
            seed=seed,
        )
        if draft_vocabulary:
            size = drafter.config.model.vocabulary_size
            drafter = reduce_vocabulary(drafter, response_vocabulary(config.responses, size, draft_vocabulary))
    with progress_bars() as progress:
        result = fit_drafter(config, drafter, progress, _tell)
    save_any_drafter(drafter.cpu(), output, target, dtype=torch.bfloat16)
    picture = plot_curves(config.output)
    state = "finished" if result.finished else "time is up; the same command goes on"
    typer.echo(
        f"step {result.step}: {state}; {result.block_tokens} block-tokens, {result.block_tokens_per_second:.0f} "
        f"a second; drafter in {output}, curves in {picture}"
    )


def _tell(step: int, validation: Validation) -> None:
    for name, found in (("greedy", validation.greedy), ("sampled", validation.sampled)):
        profile = " ".join(f"{chance:.2f}" for chance in found.conditional)
        typer.echo(f"step {step} {name}: tau {found.tau:.3f} over {found.blocks} blocks, by position {profile}")


def _folder(checkpoint: str) -> Path:
    return paths.home() / "training" / checkpoint


def _responses(checkpoint: str, data: str) -> Path:
    return _folder(checkpoint) / data / "responses"


def _states(checkpoint: str, data: str) -> Path:
    return _folder(checkpoint) / data / "states"


def _recorder(
    target: Path, precision: str, taps: tuple[int, ...], slots: int, tokens: int, threads: int, progress: Progress
) -> Recorder:
    """The recording engine for these sizes, built if it is not there."""
    from dspark_build.export.recording import build_recording_engine
    from dspark_build.training import Recorder

    folder = _folder(target.name) / f"recording-{precision}"
    progress("recording engine", 0, 1)
    build_recording_engine(target, taps, precision, folder, slots, tokens)
    progress("recording engine", 1, 1)
    return Recorder(folder, threads)


def _target(checkpoint: str) -> Path:
    return paths.prepared_checkpoint(checkpoint)


def _layers(checkpoint: str) -> int:
    from dspark_build.models.config import ModelConfig

    return ModelConfig.read(_target(checkpoint)).layers


def _taps(text: str, checkpoint: str) -> tuple[int, ...]:
    """The given taps, or DEFAULT_TAPS from the second layer to the last but two."""
    if text:
        return tuple(_numbers(text, int, "taps"))
    last = max(1, _layers(checkpoint) - 3)
    return tuple(sorted({int(1 + tap * (last - 1) / (DEFAULT_TAPS - 1)) for tap in range(DEFAULT_TAPS)}))


def _numbers(text: str, kind: type[int] | type[float], name: str) -> Sequence[int | float]:
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigurationError(f"{name} {text!r}: numbers separated by commas are expected") from error
