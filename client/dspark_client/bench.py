"""`dspark bench`: what the server costs beside the bare engine loop, and what many streams gain over one."""

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

from dspark_client.bare_loop import decode_plainly
from dspark_client.load import generate, load_progress, run_load
from dspark_client.points import Point, Sample, measure_sample, summarise
from dspark_client.prompts import Prompt
from dspark_client.sessions import OwnServer, own_server
from dspark_client.transport import Generation

CONCURRENCIES = (1, 8, 16)
PLAIN = "none"


@dataclass(frozen=True)
class ServerAgainstBare:
    """Plain decoding of the same prompts, one at a time, turn and turn about; tokens/s are medians over prompts."""

    server_tokens_per_second: float
    bare_tokens_per_second: float
    ratio: float                     # median of the prompts' own ratios
    same_tokens: bool


@dataclass(frozen=True)
class BenchReport:
    """The result, in the names of its JSON. `speedups` compares tokens/s with concurrency 1, plain decoding."""

    points: list[Point]
    server_against_bare: ServerAgainstBare
    speedups: dict[str, float]
    engine: str
    prompts: int
    max_tokens: int


def run_bench(settings: ServingSettings, prompts: Sequence[Prompt], max_tokens: int, repeats: int) -> BenchReport:
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
        points = _points(settings.policy, server, generations, repeats, progress)
    speed = {point.concurrency: point.tokens_per_second for point in points if point.policy == PLAIN}
    return BenchReport(
        points=points,
        server_against_bare=compared,
        speedups={f"concurrency_{c}": round(speed[c] / speed[1], 3) for c in CONCURRENCIES[1:]},
        engine=folder.root.name, prompts=len(generations), max_tokens=max_tokens,
    )


def _prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> Int32:
    text = tokenizer.render_chat([Turn(message.role, message.content) for message in prompt.first_turn()])
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


def _points(
    policy: str, server: OwnServer, generations: Sequence[Generation], repeats: int, progress: Progress,
) -> list[Point]:
    """Every concurrency with and without speculation, all of them once in every repeat."""
    drafting = [replace(generation, max_draft_tokens=None) for generation in generations]
    loads = {PLAIN: list(generations)} | ({} if policy == PLAIN else {policy: drafting})
    samples: dict[tuple[str, int], list[Sample]] = {}
    for repeat in range(repeats):
        for concurrency in CONCURRENCIES:
            for name, load in loads.items():
                label = f"{name}, {concurrency} at a time, {repeat + 1} of {repeats}"
                sample = measure_sample(
                    server.metrics_address,
                    lambda load=load, c=concurrency, label=label: run_load(server.connection, load, c, progress, label),
                )
                samples.setdefault((name, concurrency), []).append(sample)
    return [summarise(name, concurrency, found) for (name, concurrency), found in samples.items()]
