"""`dspark report`: results of three tools on one page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from dspark.errors import ConfigurationError
from dspark_client.bench import Goodput, Percentiles
from dspark_client.cli import app
from dspark_client.report import Measured, Source, read_sources, render, write_report
from typer.testing import CliRunner

OURS = {
    "points": [
        {
            "policy": policy, "concurrency": concurrency, "rate": None, "domain": "math",
            "tokens_per_second": 100.0 * concurrency, "tokens_per_second_spread": [90.0, 1000.0],
            "tokens_per_second_per_user": 100.0, "ttft_ms": {"p50": 10.0, "p99": 20.5}, "itl_ms": None, "tau": 2.25,
            "verified_per_request": 3.0, "ratio_to_none": ratio, "ratio_to_none_spread": [ratio, ratio + 0.5],
            "goodput": {"requests_per_second": 1.5, "tokens_per_second": 90.0, "share": 0.5}, "repeats": 3,
        }
        for policy, ratio in (("none", 1.0), ("<adaptive>", 1.75)) for concurrency in (1, 8)
    ],
    "settings": {"engine": "int8", "slo_ttft_ms": None}, "samples": [],
}
GENAI_PERF = {
    "output_token_throughput": {"unit": "tokens/sec", "avg": 443.39},
    "output_token_throughput_per_user": {"unit": "tokens/sec/user", "avg": 248.14},
    "time_to_first_token": {"unit": "ms", "avg": 11.59, "p50": 11.5, "p99": 41.11},
    "inter_token_latency": {"unit": "ms", "avg": 4.03, "p99": 4.38},
    "input_config": {"perf_analyzer": {"stimulus": {"concurrency": 4}}},
}
MILLISECOND = 10**6


def request(sent_ms: int, responses_ms: list[int], outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    times = [ms * MILLISECOND for ms in responses_ms]
    found = {"timestamp": sent_ms * MILLISECOND, "request_inputs": {"stream": True}, "response_timestamps": times}
    return found if outputs is None else {**found, "response_outputs": outputs}


def export(*requests: dict[str, Any], mode: str = "concurrency", value: float = 2) -> dict[str, Any]:
    """As perf_analyzer 2.51 writes it."""
    experiment = {"experiment": {"mode": mode, "value": value}, "requests": list(requests), "window_boundaries": []}
    return {"experiments": [experiment], "version": "2.51.0", "service_kind": "triton", "endpoint": ""}


def read(tmp_path: Path, document: Any, name: str = "result.json") -> Source:
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    (source,) = read_sources([path])
    return source


class Cells(HTMLParser):
    """The rows of all tables, and whatever a page would fetch."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.fetched: list[str] = []
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]
        self.fetched += [tag] * (tag in ("script", "link", "iframe"))
        self._open = tag in ("th", "td")
        if tag == "tr":
            self.rows.append([])
        elif self._open:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data

    def rows_of(self, *cells: str) -> list[list[str]]:
        return [row for row in self.rows if tuple(row[: len(cells)]) == cells]


def test_points_of_a_sweep_are_read_as_they_were_written(tmp_path: Path) -> None:
    source = read(tmp_path, OURS)
    assert source.kind == "dspark bench" and source.settings == (("engine", "int8"),)
    assert source.measured[3] == Measured(
        "result.json", "<adaptive>", 8, None, "math", 800.0, (90.0, 1000.0), 100.0, Percentiles(10.0, 20.5), None,
        2.25, 3.0, 1.75, (1.75, 2.25), Goodput(1.5, 90.0, 0.5), 3,
    )


def test_the_results_of_earlier_versions_are_read_too() -> None:
    (source,) = read_sources([Path(__file__).parents[2] / "docs" / "measurements" / "bench-int8.json"])
    assert {point.series for point in source.measured} == {"none", "threshold:0.6"}
    assert all(point.ratio_to_none is None and point.itl_ms for point in source.measured)


def test_a_simulation_is_called_one(tmp_path: Path) -> None:
    assert read(tmp_path, {**OURS, "settings": {"simulated": True}}).kind == "simulation"


def test_perf_analyzers_responses_are_tokens_with_times(tmp_path: Path) -> None:
    source = read(tmp_path, export(request(1000, [1100, 1150, 1200]), request(1000, [1300, 1400])))
    (point,) = source.measured
    assert (source.kind, point.concurrency, point.rate) == ("perf_analyzer", 2, None)
    assert point.ttft_ms == Percentiles(200.0, 298.0) and point.itl_ms.p50 == 50.0
    assert point.tokens_per_second == 15.0              # three tokens in the 0.2 s with two requests in flight
    assert point.tau is None and point.verified_per_request is None


def test_our_own_outputs_tell_perf_analyzers_reader_tokens_and_rounds(tmp_path: Path) -> None:
    statistics = json.dumps({"rounds": 2, "drafted": 8, "verified": 6, "accepted": 3, "tau": 2.5})
    outputs = [{"token_ids": 7, "statistics": ""}, {"token_ids": [7, 8, 9, 7], "statistics": statistics}]
    (point,) = read(tmp_path, export(request(0, [100, 500], outputs), value=1)).measured
    assert point.tokens_per_second == 10.0 and point.itl_ms.p50 == 100.0
    assert point.tau == 2.5 and point.verified_per_request == 3.0


def test_an_open_loop_of_perf_analyzer_has_a_rate(tmp_path: Path) -> None:
    (point,) = read(tmp_path, export(request(0, [100]), mode="request_rate", value=2.5)).measured
    assert (point.concurrency, point.rate) == (None, 2.5)


def test_genai_perfs_statistics_are_read(tmp_path: Path) -> None:
    source = read(tmp_path, GENAI_PERF)
    (point,) = source.measured
    assert source.kind == "genai-perf" and point.concurrency == 4
    assert (point.tokens_per_second, point.tokens_per_second_per_user) == (443.39, 248.14)
    assert point.ttft_ms == Percentiles(11.5, 41.11)
    assert point.itl_ms == Percentiles(4.03, 4.38)      # the mean, where a version gives no p50


def test_genai_perfs_older_options_are_found_too(tmp_path: Path) -> None:
    older = {**GENAI_PERF, "input_config": {"concurrency": None, "request_rate": 3.0, "streaming": True}}
    (point,) = read(tmp_path, older).measured
    assert (point.concurrency, point.rate) == (None, 3.0)


@pytest.mark.parametrize("document", ["", "[]", "{}", '{"experiments": 3}', {"tau": 2.0, "datasets": {}}, "\x00"])
def test_an_unknown_file_is_refused_by_name(tmp_path: Path, document: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"odd\.json"):
        read(tmp_path, document, "odd.json")


@pytest.mark.parametrize("document", [
    {"points": [{"policy": "none"}]}, {"experiments": [{"experiment": {"mode": "concurrency", "value": 1}}]},
    {"points": [3]}, export(), {**GENAI_PERF, "time_to_first_token": {"unit": "furlongs", "avg": 1, "p99": 1}},
])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, document: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"odd\.json is damaged"):
        read(tmp_path, document, "odd.json")


def test_the_ratio_table_has_a_row_a_policy_and_a_column_a_level(tmp_path: Path) -> None:
    page = Cells(render([read(tmp_path, OURS)]))
    assert page.rows_of("policy", "domain", "file") == [["policy", "domain", "file", "1", "8"]]
    cell = "1.75 (1.75–2.25)"
    assert page.rows_of("<adaptive>", "math", "result.json") == [["<adaptive>", "math", "result.json", cell, cell]]
    assert not page.rows_of("none", "math", "result.json")


def test_latency_and_goodput_have_tables(tmp_path: Path) -> None:
    page = Cells(render([read(tmp_path, OURS)]))
    begin = ("none", "math", "8", "result.json")
    assert [row[4:] for row in page.rows_of(*begin)] == [
        ["800.0 (90.0–1000.0)", "100.0", "2.25", "3.00", "3"], ["10.0", "20.5", "–", "–"], ["1.50", "90.0", "50%"],
    ]


def test_the_page_draws_a_line_a_policy_for_every_domain_and_fetches_nothing(tmp_path: Path) -> None:
    sources = [read(tmp_path, OURS), read(tmp_path, GENAI_PERF, "other.json")]
    text = render(sources)
    assert text.count("<svg") == 3 + 2                  # of genai-perf no budget is known
    assert "figure 7" in text and "figure 8" in text and "&lt;adaptive&gt;" in text and "<adaptive>" not in text
    page = Cells(text)
    assert all(found.startswith("#") for found in page.fetched)
    assert not re.search(r'url\((?!#)|@import', text)


def test_a_policy_of_two_files_is_told_apart(tmp_path: Path) -> None:
    text = render([read(tmp_path, OURS, "a.json"), read(tmp_path, OURS, "b.json")])
    assert "none (a.json)" in text and "none (b.json)" in text


def test_the_verb_writes_one_file(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(OURS))
    output = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "bench.json"), "--output", str(output)])
    assert result.exit_code == 0 and output.read_text().startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(OURS))
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_report([tmp_path / "bench.json"], tmp_path / "nowhere" / "page.html")
