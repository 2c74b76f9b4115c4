"""Acceptance for people: tables and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from dspark.errors import ConfigurationError
from dspark_client.acceptance import Acceptance, AcceptanceReport
from dspark_client.acceptance_report import check_plot, markdown, plot

MATH = Acceptance(2.345, (2.1, 2.6), [0.5, 0.75, None], 100, 234)
CHAT = Acceptance(1.5, (1.4, 1.6), [0.25, 0.5, 0.125], 100, 150)
REPORT = AcceptanceReport(
    1.9225, {"gsm8k": MATH, "mt-bench": CHAT}, {"math": MATH, "chat": CHAT}, "full", 3, 0.0, "int8", "vanilla:0123",
    {"1": 1.25, "3": 1.9225},
)


def rows(text: str, first_cell: str) -> list[list[str]]:
    """The table rows that begin with a cell."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if line[0].strip() == first_cell]


def test_the_tables_have_a_row_a_data_set_and_a_row_a_domain() -> None:
    text = markdown(REPORT)
    assert rows(text, "data set") == [["data set", "τ", "95% interval", "1", "2", "3"]]
    assert rows(text, "gsm8k") == [["gsm8k", "2.35", "2.10–2.60", "0.50", "0.75", "–"]]
    assert rows(text, "mean") == [["mean", "1.92", "", "", "", ""]]
    assert rows(text, "chat") == [["chat", "1.50", "1.40–1.60", "0.25", "0.50", "0.12"]]


def test_every_row_of_a_table_has_as_many_cells_as_its_header() -> None:
    for table in markdown(REPORT).split("\n\n")[1:]:
        assert len({line.count("|") for line in table.strip().splitlines()}) == 1


def test_a_sweep_has_a_table_of_its_own() -> None:
    assert rows(markdown(REPORT), "1") == [["1", "1.25"]]
    assert rows(markdown(AcceptanceReport(**{**vars(REPORT), "blocks": {}})), "drafts verified") == []


def test_the_text_says_what_was_measured() -> None:
    assert "vanilla:0123" in markdown(REPORT) and "temperature 0." in markdown(REPORT)


def test_the_plot_has_a_line_a_domain(tmp_path: Path) -> None:
    file = tmp_path / "acceptance.svg"
    check_plot(file)
    plot(REPORT, file)
    drawn = file.read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("math", "chat", "position in the block"))


def test_a_plot_of_an_unknown_kind_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for name in ("plot.txt", "plot"):
        with pytest.raises(ConfigurationError, match=r"ends in one of .*\.png"):
            check_plot(tmp_path / name)


def test_a_plot_without_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dspark_client.acceptance_report.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="matplotlib is missing"):
        check_plot(tmp_path / "plot.png")


def test_a_plot_into_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        plot(REPORT, tmp_path / "nowhere" / "plot.png")
