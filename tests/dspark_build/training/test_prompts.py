"""Prompt files: clear errors with line numbers, a split by prompt, an even mixture."""

from __future__ import annotations

import pytest
from dspark.errors import ConfigurationError
from dspark.prompts import Prompt, read_prompt_file
from dspark_build.training.prompts import interleave, is_held_out

GOOD = '{"id": "a/1", "domain": "math", "turns": ["1+1?"]}'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": "a/2", ', "not JSON"),
        ("[1]", "an object"),
        ('{"domain": "math", "turns": ["x"]}', "id must be"),
        ('{"id": "a/2", "domain": 3, "turns": ["x"]}', "domain must be"),
        ('{"id": "a/2", "domain": "math", "turns": []}', "turns must be"),
        ('{"id": "a/2", "domain": "math", "turns": [""]}', "turns must be"),
        (GOOD, "'a/1' was there before"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_or_skipped_as_chosen(tmp_path, line, complaint):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n" + GOOD.replace("a/1", "a/9") + "\n")
    with pytest.raises(ConfigurationError, match=complaint) as error:
        read_prompt_file(path, unique_ids=True)
    assert f"{path}, line 3:" in str(error.value)
    kept = read_prompt_file(path, skip_bad_lines=True, unique_ids=True)
    assert [prompt.id for prompt in kept.prompts] == ["a/1", "a/9"]
    assert len(kept.skipped) == 1 and "line 3:" in kept.skipped[0]


def test_bytes_that_are_not_utf8_are_a_bad_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(GOOD.encode() + b"\n\xff\xfe\n")
    with pytest.raises(ConfigurationError, match=r"line 2:.*UTF-8"):
        read_prompt_file(path)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.jsonl"):
        read_prompt_file(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigurationError, match="has no prompts"):
        read_prompt_file(tmp_path / "empty.jsonl")


def test_the_split_is_by_prompt_and_near_its_fraction():
    held = [is_held_out(f"set/{i}", 0.1) for i in range(2000)]
    assert 0.08 < sum(held) / 2000 < 0.12
    assert held == [is_held_out(f"set/{i}", 0.1) for i in range(2000)]
    assert not any(is_held_out(f"set/{i}", 0.0) for i in range(100))


def test_groups_are_interleaved():
    def group(name, count):
        return [Prompt(f"{name}{i}", "chat", ("x",)) for i in range(count)]

    mixed = [prompt.id for prompt in interleave([group("a", 3), group("b", 1), group("c", 2)])]
    assert mixed == ["a0", "b0", "c0", "a1", "c1", "a2"]
