"""`dspark calibrate`: collect rounds whose whole block is verified, on the engines in this process.

A recording (--record) is JSON lines, one a round, by temperature, prompt and round:
{"prompt": id, "domain": …, "temperature": of the request, "round": its number in the answer, from 0, "logits": [gamma]
of confidence, "accepted": drafts accepted, "verified": drafts judged}. `verified` is gamma but where an answer ends: at
its longest, or behind a stop token among the drafts, accepted or not. What lies beyond is not known.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from dspark.engines.contract import EngineFolder
from dspark.engines.loading import read_drafter_limits
from dspark.errors import ConfigurationError, EngineError
from dspark.scheduling.calibration import CalibrationData, CalibrationRecord, drafter_fingerprint
from dspark.settings import ServingSettings

from dspark_client.acceptance import measure_acceptance
from dspark_client.calibration_fit import Fit, PromptRounds, fit
from dspark_client.deployment import check_deployment
from dspark_client.prompts import Prompt, first_turn
from dspark_client.rounds_recorder import RecordedEngines, Round, recorded_engines
from dspark_client.transport import Generation


@dataclass(frozen=True)
class CalibrationOptions:
    """How to collect and to split."""

    temperatures: tuple[float, ...]  # of the requests: every prompt is answered at each
    max_tokens: int
    holdout: float                   # share of the prompts that judge the fit
    concurrency: int
    seed: int


@dataclass(frozen=True)
class Calibrated:
    """The record to keep, and what a picture and a recording need besides."""

    record: CalibrationRecord
    fit: Fit
    answers: list[PromptRounds]


def calibrate(settings: ServingSettings, prompts: Sequence[Prompt], options: CalibrationOptions) -> Calibrated:
    """Collect rounds, fit on those of some prompts and judge on those of the others; writes nothing.

    Raises ConfigurationError for prompts too few and for a drafter without confidence, DSparkError when a request
    fails.
    """
    settings = replace(
        settings, max_slots=max(settings.max_slots, options.concurrency),
        max_queue=max(settings.max_queue, options.concurrency),
    )
    check_deployment(settings)
    folder = EngineFolder(Path(settings.engine_folder))
    limits = read_drafter_limits(folder.drafter)
    if not limits.has_confidence:
        raise ConfigurationError(f"the drafter in {folder.drafter} has no confidence head: there is nothing to fit")
    judging = held_out(prompts, options.holdout, options.seed)
    with recorded_engines(settings) as engines:
        answers = [found for t in options.temperatures for found in _collect(engines, prompts, options, t)]
    found = fit(
        [answer for answer in answers if answer.prompt not in judging],
        [answer for answer in answers if answer.prompt in judging], limits.block_size,
    )
    record = CalibrationRecord(
        drafter=drafter_fingerprint(folder.drafter),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        temperatures=options.temperatures,
        data=CalibrationData(
            datasets=dict(Counter(prompt.dataset for prompt in prompts)),
            fit_prompts=sum(prompt not in judging for prompt in prompts), fit_rounds=found.fit_rounds,
            held_out_prompts=sum(prompt in judging for prompt in prompts), held_out_rounds=found.held_out_rounds,
            max_tokens=options.max_tokens, seed=options.seed, engine=folder.root.name,
        ),
        positions=found.positions,
    )
    return Calibrated(record, found, answers)


def held_out(prompts: Sequence[Prompt], share: float, seed: int) -> set[Prompt]:
    """So large a share of the prompts, of every domain alike; each part has one at least.

    Raises ConfigurationError for fewer than two different prompts.
    """
    different = list(dict.fromkeys(prompts))
    if len(different) < 2:
        raise ConfigurationError("a calibration is fitted on some prompts and judged on others: at least 2 are needed")
    shuffled = [different[i] for i in np.random.default_rng(seed).permutation(len(different))]
    shuffled.sort(key=lambda prompt: prompt.domain)
    count = min(max(1, round(share * len(different))), len(different) - 1)
    return {shuffled[(2 * i + 1) * len(different) // (2 * count)] for i in range(count)}


def recording(answers: Sequence[PromptRounds]) -> str:
    """The lines of a recording, as described above."""
    return "".join(
        json.dumps({
            "prompt": answer.prompt.id, "domain": answer.prompt.domain, "temperature": answer.temperature,
            "round": found.number, "logits": [round(float(logit), 5) for logit in found.logits],
            "accepted": found.accepted, "verified": found.verified,
        }) + "\n"
        for answer in answers for found in answer.rounds
    )


def _collect(
    engines: RecordedEngines, prompts: Sequence[Prompt], options: CalibrationOptions, temperature: float,
) -> Iterator[PromptRounds]:
    """Answer all prompts at one temperature: the rounds of each, in the order of the prompts."""
    generation = Generation(max_tokens=options.max_tokens, temperature=temperature, seed=options.seed)
    measure_acceptance(engines.engines, prompts, generation, options.concurrency)
    recorded: dict[tuple[int, ...], list[Sequence[Round]]] = {}
    for answer in engines.recorder.take():
        recorded.setdefault(tuple(answer.prompt), []).append(answer.rounds)
    for prompt in prompts:
        found = recorded.get(engines.prompt_tokens(generation.with_messages(first_turn(prompt))))
        if not found:
            raise EngineError(f"no round of prompt {prompt.id} was recorded")
        yield PromptRounds(prompt, temperature, found.pop())
