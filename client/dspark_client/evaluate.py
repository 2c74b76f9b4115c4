"""`dspark evaluate`: what is measured, on the engines in this process or on a server started for the occasion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.engines.drafter_record import DrafterRecord
from dspark.engines.engine_json import engine_name, read_record
from dspark.engines.tensorrt_llm_record import TensorRtLlmDrafterRecord
from dspark.engines.tensorrt_record import TensorRtDrafterRecord
from dspark.errors import ConfigurationError
from dspark.settings import ServingSettings

from dspark_client.acceptance import AcceptanceReport, answers_by, macro_tau, measure_acceptance, summarise
from dspark_client.deployment import block_size, check_deployment
from dspark_client.direct import direct_engines
from dspark_client.load import Answering
from dspark_client.lossless import LosslessReport, compare_decodings
from dspark_client.prompts import Prompt
from dspark_client.sessions import own_server
from dspark_client.transport import Generation


def evaluate_lossless(
    settings: ServingSettings, prompts: Sequence[Prompt], max_tokens: int, concurrencies: Sequence[int],
    block: int | None = None, through_server: bool = False,
) -> LosslessReport:
    """Greedy answers with and without speculation, compared. Raises DSparkError when a request fails."""
    settings = _with_room(settings, max(concurrencies))
    block = _checked(settings, block)
    with _engines(settings, through_server) as engines:
        return compare_decodings(engines, prompts, max_tokens, concurrencies, block)


def evaluate_acceptance(
    settings: ServingSettings, prompts: Sequence[Prompt], generation: Generation, concurrency: int,
    sweep: Sequence[int] = (), through_server: bool = False,
) -> AcceptanceReport:
    """Accepted tokens a round, and again with at most n drafts of a block verified for every n of `sweep`.

    `generation` says how to answer, its max_draft_tokens how much of a block to verify; acceptance depends neither on
    the concurrency nor on the way. Raises ConfigurationError for more drafts than a block has, DSparkError when a
    request fails.
    """
    settings = _with_room(settings, concurrency)
    block = _checked(settings, generation.max_draft_tokens)
    lengths = list(dict.fromkeys([block, *(_checked(settings, length) for length in sweep)]))
    folder = EngineFolder(Path(settings.engine_folder))
    with _engines(settings, through_server) as engines:
        answers = {
            length: measure_acceptance(engines, prompts, replace(generation, max_draft_tokens=length), concurrency)
            for length in lengths
        }
    datasets = {
        length: {name: summarise(found) for name, found in answers_by("dataset", prompts, answers[length]).items()}
        for length in lengths
    }
    return AcceptanceReport(
        tau=macro_tau(datasets[block]),
        datasets=datasets[block],
        domains={name: summarise(found) for name, found in answers_by("domain", prompts, answers[block]).items()},
        policy=settings.policy, block=block, temperature=generation.temperature or 0.0,
        engine=folder.root.name, drafter=_drafter_name(folder.drafter),
        blocks={str(length): macro_tau(datasets[length]) for length in sweep}, verification=settings.verification,
    )


@contextmanager
def _engines(settings: ServingSettings, through_server: bool) -> Iterator[Answering]:
    if through_server:
        with own_server(settings) as server:
            yield server.connection
    else:
        with direct_engines(settings) as engines:
            yield engines


def _with_room(settings: ServingSettings, concurrency: int) -> ServingSettings:
    """Settings under which that many requests run together, as far as the engine has slots, and none is refused."""
    return replace(
        settings, max_slots=max(settings.max_slots, concurrency), max_queue=max(settings.max_queue, concurrency)
    )


def _checked(settings: ServingSettings, length: int | None) -> int:
    """The most drafts of a block to verify: `length`, or all. Raises ConfigurationError for more than a block has."""
    check_deployment(settings)
    most = block_size(EngineFolder(Path(settings.engine_folder)))
    if length is not None and not 0 < length <= most:
        raise ConfigurationError(f"a block of this drafter has {most} drafts: choose from 1 to {most}, not {length}")
    return most if length is None else length


def _drafter_name(folder: Path) -> str:
    """A drafter's head and the beginning of its hash, which identify it in a result."""
    kinds = {kind.engine: kind for kind in (DrafterRecord, TensorRtDrafterRecord, TensorRtLlmDrafterRecord)}
    record = read_record(folder, kinds.get(engine_name(folder), DrafterRecord))
    return f"{record.markov_head_type}:{record.facts.drafter_hash[:12]}"
