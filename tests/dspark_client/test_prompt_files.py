"""Prompt files: what is read, and how a bad line is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from dspark.errors import ConfigurationError
from dspark_client.paths import REPOSITORY
from dspark_client.prompts import first_turn, read_prompts

GOOD = '{"id": "a/0", "domain": "chat", "turns": ["Hello", "And then?"]}'


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_prompts_come_in_file_order_with_the_beginning_of_their_ids_as_their_dataset(tmp_path: Path) -> None:
    first = write(tmp_path / "gsm8k.jsonl", GOOD, "", GOOD.replace("a/0", "a/1"))
    second = write(tmp_path / "humaneval.jsonl", GOOD.replace("a/0", "b/0"))
    found = read_prompts([first, second])
    assert [(prompt.id, prompt.dataset) for prompt in found] == [("a/0", "a"), ("a/1", "a"), ("b/0", "b")]
    assert found[0].turns == ("Hello", "And then?")
    assert [message.content for message in first_turn(found[0])] == ["Hello"]


def test_a_prompt_whose_id_names_no_dataset_belongs_to_that_of_its_file(tmp_path: Path) -> None:
    (prompt,) = read_prompts([write(tmp_path / "mine.jsonl", GOOD.replace("a/0", "7"))])
    assert prompt.dataset == "mine"


def test_a_limit_counts_per_file(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", *[GOOD.replace("a/0", f"{name}/0")] * 3) for name in "ab"]
    assert [prompt.dataset for prompt in read_prompts(files, limit=2)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"domain": "chat", "turns": ["x"]}', "id must be"),
        ('{"id": 3, "domain": "chat", "turns": ["x"]}', "id must be"),
        ('{"id": "a", "turns": ["x"]}', "domain must be"),
        ('{"id": "a", "domain": "chat"}', "turns must be"),
        ('{"id": "a", "domain": "chat", "turns": []}', "turns must be"),
        ('{"id": "a", "domain": "chat", "turns": [""]}', "turns must be"),
        ('{"id": "a", "domain": "chat", "turns": "x"}', "turns must be"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"p\.jsonl, line 3: .*{said}"):
        read_prompts([write(tmp_path / "p.jsonl", GOOD, "", line)])


def test_bad_lines_are_left_out_and_named_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{\n' + GOOD.encode() + b'\n{"id": "\xff"}\n' + GOOD.replace("a/0", "a/1").encode())
    said: list[str] = []
    assert [prompt.id for prompt in read_prompts([path], skip=said.append)] == ["a/0", "a/1"]
    assert [line.partition(": not JSON")[0] for line in said] == [f"{path}, line 1", f"{path}, line 3"]


def test_a_limit_does_not_count_the_lines_that_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", "{", GOOD)
    assert len(read_prompts([path], limit=1, skip=lambda line: None)) == 1


def test_a_line_ends_at_a_newline_alone(tmp_path: Path) -> None:
    (prompt,) = read_prompts([write(tmp_path / "p.jsonl", GOOD.replace("Hello", "one\u2028two"))])
    assert prompt.turns[0] == "one\u2028two"


def test_a_file_of_bad_lines_alone_is_refused_though_they_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"p\.jsonl has no prompts"):
        read_prompts([write(tmp_path / "p.jsonl", "{")], skip=lambda line: None)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"p\.jsonl"):
        read_prompts([tmp_path / "p.jsonl"])


def test_the_prompts_that_come_with_the_repository_are_readable() -> None:
    found = read_prompts([REPOSITORY / "client" / "prompts" / "sample.jsonl"])
    assert {prompt.domain for prompt in found} == {"chat", "math", "code"} and len(found) >= 16
