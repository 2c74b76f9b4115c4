"""`dspark evaluate`: measures a server of its own, started for the occasion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.engines.drafter_record import DrafterRecord
from dspark.engines.engine_json import read_record
from dspark.settings import ServingSettings

from dspark_client.acceptance import AcceptanceReport, measure_acceptance
from dspark_client.lossless import LosslessReport, compare_decodings
from dspark_client.prompts import Prompt
from dspark_client.sessions import own_server
from dspark_client.transport import Generation


def evaluate_lossless(
    settings: ServingSettings, prompts: Sequence[Prompt], max_tokens: int, concurrencies: Sequence[int],
) -> LosslessReport:
    """Greedy answers with and without speculation, compared. Raises DSparkError when the server fails."""
    with own_server(settings) as server:
        return compare_decodings(server.connection, prompts, max_tokens, concurrencies)


def evaluate_acceptance(
    settings: ServingSettings, prompts: Sequence[Prompt], max_tokens: int, temperature: float,
    concurrencies: Sequence[int],
) -> AcceptanceReport:
    """Accepted tokens a round, at the highest of the concurrencies; acceptance does not depend on it."""
    generation = Generation(max_tokens=max_tokens, temperature=temperature, seed=0)
    engine = EngineFolder(Path(settings.engine_folder))
    with own_server(settings) as server:
        return measure_acceptance(
            server.connection, prompts, generation, max(concurrencies), engine.root.name, _drafter_name(engine.drafter)
        )


def _drafter_name(folder: Path) -> str:
    """A drafter's head and the beginning of its hash, which identify it in a result."""
    record = read_record(folder, DrafterRecord)
    return f"{record.markov_head_type}:{record.facts.drafter_hash[:12]}"
