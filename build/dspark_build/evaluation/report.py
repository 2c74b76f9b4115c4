"""A comparison for people: tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_build.evaluation.results import AtTemperature, Comparison, Interval


def markdown(comparison: Comparison) -> str:
    """For each temperature: τ by data set and by domain, paired ratios, acceptance by position."""
    about = (
        "Replay of recorded responses of the target. τ is tokens a round, the target's own token included, with a 95% "
        f"interval (bootstrap over prompts, {comparison.resamples} resamples); the mean is over data sets. Ratios are "
        "of τ on the same prompts. Acceptance at position k is that of x_k where x_1 to x_{k-1} are accepted."
    )
    return "\n\n".join([about, *(_at(found) for found in comparison.temperatures)]) + "\n"


def _at(found: AtTemperature) -> str:
    prompts = ", ".join(f"{dataset} {count}" for dataset, count in found.prompts.items())
    rows = found.drafters
    domains = list(dict.fromkeys(domain for scores in rows.values() for domain in scores.domains))
    positions = range(1, 1 + max(scores.block for scores in rows.values()))
    tables = [
        _table(
            ["drafter", "block", *found.prompts, "mean"],
            [
                [
                    name,
                    str(scores.block),
                    *(_figure(each.tau, each.ci95) for each in scores.datasets.values()),
                    _figure(scores.tau, scores.ci95),
                ]
                for name, scores in rows.items()
            ],
        ),
        _table(
            ["drafter", *domains],
            [
                [name, *(_figure(scores.domains[domain].tau, scores.domains[domain].ci95) for domain in domains)]
                for name, scores in rows.items()
            ],
        ),
    ]
    if found.ratios:
        tables.append(_table(
            ["ratio of τ", *found.prompts, "mean"],
            [
                [
                    f"{pair.numerator} / {pair.denominator}",
                    *(_figure(each.ratio, each.ci95) for each in pair.datasets.values()),
                    _figure(pair.ratio, pair.ci95),
                ]
                for pair in found.ratios
            ],
        ))  # fmt: skip
    tables.append(_table(
        ["acceptance at position", *map(str, positions)],
        [
            [name, *("" if rate is None else f"{rate:.3f}" for rate in _padded(scores.acceptance, len(positions)))]
            for name, scores in rows.items()
        ],
    ))  # fmt: skip
    return "\n\n".join([f"## Temperature {found.temperature:g}", f"Prompts: {prompts}.", *tables])


def _padded(values: Sequence[float | None], length: int) -> list[float | None]:
    return [*values, *[None] * (length - len(values))]


def _figure(value: float, interval: Interval) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))
