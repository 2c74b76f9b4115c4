"""The report's pictures, as SVG that stands in the page itself."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import cycle

from dspark_client.report.measured import Measured

SIZE = (6.2, 4.2)                    # inches, of one picture
MARKERS = "osD^vP*X"
Series = dict[str, list[Measured]]


def pareto(measured: Sequence[Measured], title: str) -> str | None:
    """Figure 7 of the paper: throughput over speed a user, a line a policy, a dot a level. None where nothing fits."""
    return _picture(
        [point for point in measured if point.tokens_per_second_per_user], title,
        "tokens/s of one user", "tokens/s of all",
        lambda point: (point.tokens_per_second_per_user or 0.0, point.tokens_per_second), labels=True,
    )


def budget(measured: Sequence[Measured], title: str) -> str | None:
    """Figure 8 of the paper: draft tokens verified of a request in a round, over the concurrency."""
    return _picture(
        [point for point in measured if point.verified_per_request is not None and point.concurrency], title,
        "requests in flight", "drafts verified a request and round",
        lambda point: (point.concurrency or 0, point.verified_per_request or 0.0), logarithmic=True,
    )


def speed(measured: Sequence[Measured], title: str) -> str | None:
    """Tokens/s over the concurrency, with the spread over repeats."""
    return _picture(
        [point for point in measured if point.concurrency], title, "requests in flight", "tokens/s of all",
        lambda point: (point.concurrency or 0, point.tokens_per_second), logarithmic=True, spread=True,
    )


def _picture(
    measured: Sequence[Measured], title: str, x: str, y: str, place: Callable[[Measured], tuple[float, float]],
    labels: bool = False, logarithmic: bool = False, spread: bool = False,
) -> str | None:
    if not measured:
        return None
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        for (name, points), marker in zip(_series(measured).items(), cycle(MARKERS), strict=False):
            xs, ys = zip(*map(place, points), strict=True)
            (line,) = axes.plot(xs, ys, marker=marker, label=name)
            if spread and all(point.tokens_per_second_spread for point in points):
                low, high = zip(*(point.tokens_per_second_spread for point in points), strict=True)
                axes.fill_between(xs, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
            for point, at in zip(points, map(place, points), strict=True):
                if labels and point.level:
                    axes.annotate(point.level, at, xytext=(4, 4), textcoords="offset points", fontsize=7)
        if logarithmic:
            levels = sorted({int(place(point)[0]) for point in measured})
            axes.set_xscale("log", base=2)
            axes.set_xticks(levels, [str(level) for level in levels])
            axes.minorticks_off()
        axes.set(xlabel=x, ylabel=y, title=title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = drawn.getvalue()
    return text[text.index("<svg"):]


def _series(measured: Sequence[Measured]) -> Series:
    """Points by policy in order of level; the file's name is added where several files have the policy."""
    files: dict[str, set[str]] = {}
    for point in measured:
        files.setdefault(point.series, set()).add(point.source)
    found: Series = {}
    for point in sorted(measured, key=lambda point: (point.concurrency or 0, point.rate or 0.0)):
        name = point.series if len(files[point.series]) == 1 else f"{point.series} ({point.source})"
        found.setdefault(name, []).append(point)
    return dict(sorted(found.items()))
