"""`dspark evaluate --lossless`: the same tokens with and without speculation, alone and in company, greedily."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dspark_client.load import Answer, Answering, LoadResult, load_progress, run_load
from dspark_client.prompts import Prompt, first_turn
from dspark_client.transport import Generation

FIRST_SHOWN = 10


@dataclass(frozen=True)
class Mismatch:
    """Where an answer first leaves the reference; None stands for the end of the answer."""

    prompt: str
    concurrency: int
    speculation: bool
    position: int
    expected: int | None
    got: int | None


@dataclass(frozen=True)
class Run:
    """One pass over all prompts."""

    concurrency: int
    speculation: bool
    tokens: int
    seconds: float
    tau: float | None                # accepted tokens a round, bonus included; None without rounds


@dataclass(frozen=True)
class LosslessReport:
    """The result, in the names of its JSON. `tokens` counts every token compared with the reference."""

    prompts: int
    tokens: int
    mismatched_tokens: int
    first_mismatches: list[Mismatch]
    runs: list[Run] = field(default_factory=list)


def compare_decodings(
    engines: Answering, prompts: Sequence[Prompt], max_tokens: int, concurrencies: Sequence[int],
    block: int | None = None,
) -> LosslessReport:
    """Decode every prompt with and without speculation (of `block` drafts at most) at every concurrency.

    The reference is plain decoding at the first concurrency; every other pass is compared with it. Raises DSparkError.
    """
    settings = Generation(max_tokens=max_tokens, temperature=0.0, max_draft_tokens=block)
    speculative = [settings.with_messages(first_turn(prompt)) for prompt in prompts]
    plain = [replace(generation, max_draft_tokens=0) for generation in speculative]
    reference: list[Answer] | None = None
    runs, mismatches, compared, mismatched = [], [], 0, 0
    with load_progress() as progress:
        for concurrency in concurrencies:
            for speculation, generations in ((False, plain), (True, speculative)):
                label = f"{'speculative' if speculation else 'plain'}, {concurrency} at a time"
                result = run_load(engines, generations, concurrency, progress, label)
                runs.append(Run(concurrency, speculation, result.tokens, round(result.wall_s, 3), _tau(result)))
                if reference is None:
                    reference = result.answers
                    continue
                for prompt, expected, got in zip(prompts, reference, result.answers, strict=True):
                    differing = list(differences(expected.token_ids, got.token_ids))
                    compared += max(len(expected.token_ids), len(got.token_ids))
                    mismatched += len(differing)
                    if differing:
                        mismatches.append(Mismatch(prompt.id, concurrency, speculation, *differing[0]))
    return LosslessReport(len(prompts), compared, mismatched, mismatches[:FIRST_SHOWN], runs)


def differences(expected: Sequence[int], got: Sequence[int]) -> Iterator[tuple[int, int | None, int | None]]:
    """(position, expected, got) wherever two sequences differ, beyond the end of the shorter one too."""
    for position in range(max(len(expected), len(got))):
        pair = tuple(tokens[position] if position < len(tokens) else None for tokens in (expected, got))
        if pair[0] != pair[1]:
            yield position, *pair


def _tau(result: LoadResult) -> float | None:
    rounds = sum(answer.statistics["rounds"] for answer in result.answers)
    accepted = sum(answer.statistics["accepted"] for answer in result.answers)
    return round(1 + accepted / rounds, 4) if rounds else None
