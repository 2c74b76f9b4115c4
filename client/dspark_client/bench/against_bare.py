"""`dspark bench --against-bare`: what the server costs beside the bare engine loop, and many streams against one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from dspark.engines.contract import EngineFolder, Int32
from dspark.engines.loading import load_target
from dspark.orchestrator.chat import Message as Turn
from dspark.orchestrator.tokenizer import Tokenizer
from dspark.settings import ServingSettings
from rich.progress import Progress

from dspark_client.bench.bare_loop import decode_plainly
from dspark_client.bench.counters import CounterReading
from dspark_client.bench.plan import ALL_DOMAINS, Run
from dspark_client.bench.points import PLAIN, Point, summarise
from dspark_client.bench.samples import Sample, summarise_load
from dspark_client.load import generate, load_progress, run_load
from dspark_client.prompts import Prompt, first_turn
from dspark_client.sessions import OwnServer, own_server
from dspark_client.transport import Generation

CONCURRENCIES = (1, 8, 16)


@dataclass(frozen=True)
class ServerAgainstBare:
    """Plain decoding of the same prompts, one at a time, turn and turn about; tokens/s are medians over prompts."""

    server_tokens_per_second: float
    bare_tokens_per_second: float
    ratio: float                     # median of the prompts' own ratios
    same_tokens: bool


@dataclass(frozen=True)
class AgainstBareReport:
    """The result, in the names of its JSON. `speedups` compares tokens/s with concurrency 1, plain decoding."""

    points: list[Point]
    server_against_bare: ServerAgainstBare
    speedups: dict[str, float]
    engine: str
    prompts: int
    max_tokens: int


def run_against_bare(
    settings: ServingSettings, prompts: Sequence[Prompt], max_tokens: int, repeats: int,
) -> AgainstBareReport:
    """Measure everything on one server of our own. Raises DSparkError when a request fails."""
    folder = EngineFolder(Path(settings.engine_folder))
    tokenizer = Tokenizer(folder.tokenizer)
    generations = [
        Generation(
            input_ids=_prompt_ids(tokenizer, prompt).tolist(),
            max_tokens=max_tokens, temperature=0.0, ignore_eos=True, max_draft_tokens=0,
        )
        for prompt in islice(cycle(prompts), max(len(prompts), *CONCURRENCIES))     # enough to fill every concurrency
    ]
    with own_server(settings) as server, load_progress() as progress:
        compared = _against_bare(settings, server, generations, progress)
        points = summarise(_samples(settings.policy, server, generations, repeats, progress))
    speed = {point.concurrency: point.tokens_per_second_whole for point in points if point.policy == PLAIN}
    return AgainstBareReport(
        points=points,
        server_against_bare=compared,
        speedups={f"concurrency_{c}": round(speed[c] / speed[1], 3) for c in CONCURRENCIES[1:]},
        engine=folder.root.name, prompts=len(generations), max_tokens=max_tokens,
    )


def _prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> Int32:
    text = tokenizer.render_chat([Turn(message.role, message.content) for message in first_turn(prompt)])
    return tokenizer.encode(text, add_special_tokens=False)


def _against_bare(
    settings: ServingSettings, server: OwnServer, generations: Sequence[Generation], progress: Progress,
) -> ServerAgainstBare:
    """Each prompt once through the server and once through an engine of our own, in alternating order."""
    task = progress.add_task("server and bare engine, in turns", total=len(generations))
    served, bare, same = [], [], True
    with closing(load_target(EngineFolder(Path(settings.engine_folder)).target, settings.threads)) as engine:

        def bare_tokens(generation: Generation) -> tuple[int, ...]:
            prompt = np.array(generation.input_ids, np.int32)
            run = decode_plainly(engine, prompt, generation.max_tokens or 1, settings.prefill_chunk)
            bare.append(len(run.token_ids) / run.seconds)
            return run.token_ids

        def served_tokens(generation: Generation) -> tuple[int, ...]:
            answer = generate(server.connection, generation)
            served.append(len(answer.token_ids) / answer.total_s)
            return answer.token_ids

        for number, generation in enumerate(generations):
            first, second = (bare_tokens, served_tokens) if number % 2 else (served_tokens, bare_tokens)
            same = (first(generation) == second(generation)) and same
            progress.advance(task)
    return ServerAgainstBare(
        server_tokens_per_second=round(float(np.median(served)), 2),
        bare_tokens_per_second=round(float(np.median(bare)), 2),
        ratio=round(float(np.median(np.array(served) / np.array(bare))), 4),
        same_tokens=same,
    )


def _samples(
    policy: str, server: OwnServer, generations: Sequence[Generation], repeats: int, progress: Progress,
) -> list[Sample]:
    """Every concurrency with and without speculation, all of them once in every repeat."""
    drafting = [replace(generation, max_draft_tokens=None) for generation in generations]
    loads = {PLAIN: list(generations)} | ({} if policy == PLAIN else {policy: drafting})
    samples = []
    for repeat in range(repeats):
        for concurrency in CONCURRENCIES:
            for name, load in loads.items():
                run = Run(name, concurrency, None, ALL_DOMAINS, repeat)
                label = f"{name}, {concurrency} at a time, {repeat + 1} of {repeats}"
                reading = CounterReading(server.metrics_address)
                result = run_load(server.connection, load, concurrency, progress, label)
                samples.append(summarise_load(run, result, counters=reading.growth()))
    return samples
