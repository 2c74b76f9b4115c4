"""Growing text: whole characters only, stop strings across borders, tokens to bytes in both tokenizer families."""

from __future__ import annotations

import itertools

import pytest
from dspark.errors import ConfigurationError
from dspark.orchestrator import IncrementalDetokenizer, StopChecker, Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models
from toy_engines import SPECIAL, read_tokenizer

BYTES = [bytes([byte]) for byte in range(256)]


@given(st.text())
def test_byte_by_byte_every_text_comes_back_in_whole_characters(text):
    detokenizer = IncrementalDetokenizer(BYTES)
    pieces = [detokenizer.push(byte) for byte in text.encode("utf-8", "replace")]
    assert "".join(pieces) == text.encode("utf-8", "replace").decode()
    assert "�" in text or "�" not in "".join(pieces)


def test_half_a_character_is_held_back_and_left_out_at_the_end():
    detokenizer = IncrementalDetokenizer(BYTES)
    assert [detokenizer.push(byte) for byte in "é€".encode()[:-1]] == ["", "é", "", ""]


def test_bytes_that_are_no_character_do_not_hold_up_what_follows():
    detokenizer = IncrementalDetokenizer(BYTES)
    assert "".join(detokenizer.push(byte) for byte in b"a\xff\xc3b\xe2\x82\xac") == "a��b€"


@given(
    text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30)),
)
def test_a_stop_string_ends_the_text_wherever_the_pieces_are_cut(text, stops, cuts):
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    checker, released, stopped = StopChecker(stops), "", False
    for start, end in itertools.pairwise(borders):
        release = checker.push(text[start:end])
        released += release.text
        stopped = release.stopped
        if stopped:
            break
        assert not any(stop in released for stop in stops)
    ends = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    if stopped:
        first = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert ends and any(released + stop == text[: len(released) + len(stop)] for stop in stops)
        assert len(released) < first
    else:
        assert not ends
        assert released + checker.flush() == text


def test_text_is_held_back_no_longer_than_it_may_be_a_stop_string():
    checker = StopChecker(["</answer>"])
    assert checker.push("so <").text == "so "
    assert checker.push("/ans").text == ""
    assert checker.push("were").text == "</answere"[: len("</answere")]
    assert checker.push("!").text == "!"


def test_the_earliest_stop_string_wins():
    assert StopChecker(["cd", "b"]).push("abcd").text == "a"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return read_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_special_tokens_have_no_text(tokenizer):
    tokens = [SPECIAL.index("<|im_start|>"), *tokenizer.encode("hi"), 10**6]
    detokenizer = tokenizer.detokenizer()
    assert "".join(detokenizer.push(int(token)) for token in tokens) == "hi"


@given(text=st.text())
def test_the_bytes_of_byte_level_tokens_are_what_the_library_decodes(tokenizer, text):
    text = text.encode("utf-8", "replace").decode()
    tokens = tokenizer.encode(text).tolist()
    raw = tokenizer._tokenizer.decode(tokens)
    assert tokenizer.decode(tokens) == raw == text.replace("<|end|>", "")


def write_sentencepiece(folder, decoder):
    names = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁the", "▁cat", "s", "é"]
    raw = RawTokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True))
    raw.decoder = decoder
    raw.save(str(folder / "tokenizer.json"))
    return raw


def test_sentencepiece_tokens_keep_their_space_and_fall_back_to_bytes(tmp_path):
    raw = write_sentencepiece(tmp_path, decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
    ]))
    tokens = [257, 258, 259, 260, *[1 + byte for byte in "€".encode()]]
    detokenizer = Tokenizer(tmp_path).detokenizer()
    assert "".join(detokenizer.push(token) for token in tokens) == raw.decode(tokens) == " the catsé€"


def test_a_decoder_that_is_not_understood_is_refused_by_name(tmp_path):
    write_sentencepiece(tmp_path, decoders.WordPiece())
    with pytest.raises(ConfigurationError, match="WordPiece"):
        Tokenizer(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
