"""Text to ids and back."""

from __future__ import annotations

import base64
import codecs
import json
import random
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from model.errors import CheckpointError
from model.text.blocks import IdsMemo
from model.text.deltas import Detokenizer
from model.text.tokenizer import BORDERS, MAX_PIECE_CHARS, TextTokenizer, cut
from tests.fakes.chatml import DEMO, tokenizer_with

CONTROLS = tuple(tokenizer_with().controls)
# Characters that normalisers and pre-tokenisers treat apart, pieces of control strings among them.
typed_text = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            ["e\u0301", "\u1100\u1161", "\r\n", "  ", "12", "don't", "<|im_", "start|>", "</", "😀"]
        ),
    ),
    max_size=12,
).map("".join)
text_with_controls = st.lists(st.one_of(typed_text, st.sampled_from(CONTROLS)), max_size=8).map("".join)


@cache
def plain_tokenizer() -> Tokenizer:
    """The same file as its library reads it."""
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


@given(text_with_controls)
def test_text_cut_at_control_strings_has_the_ids_of_the_plain_tokenizer(text: str) -> None:
    tokenizer = tokenizer_with()
    plain = plain_tokenizer().encode(text, add_special_tokens=False).ids
    segments = tokenizer.split(text)
    parts = [tokenizer.control_ids(s) if i % 2 else tokenizer.encode_text(s) for i, s in enumerate(segments)]
    assert np.concatenate(parts).tolist() == plain
    assert tokenizer.encode(text).tolist() == plain


@given(text_with_controls)
def test_text_encoded_as_text_holds_no_control_id_and_decodes_to_itself(text: str) -> None:
    tokenizer = tokenizer_with()
    ids = tokenizer.encode_text(text)
    assert not {token.id for token in tokenizer.controls.values()} & set(ids.tolist())
    assert tokenizer.decode(ids) == _normalised(text)


marks = [
    "\n\nA",
    " \n\nb",
    ".\n\nc",
    "\r\n\n\nd",
    "\n\n\u0301",
    "\n\n1",
    "\n\n a",
    "\nx",
    "a b",
    "don't 's t",
    " \u0301a",
]
paragraphs = st.lists(st.one_of(typed_text, st.sampled_from(marks))).map("".join)


@given(paragraphs)
def test_pieces_have_the_ids_of_the_whole(text: str) -> None:
    tokenizer = tokenizer_with()
    cuts = [cut(text), *(border.split(text) for border in BORDERS)]
    for pieces in cuts:
        assert "".join(pieces) == text
        ids = [i for piece in pieces for i in tokenizer.encode_text(piece).tolist()]
        assert ids == tokenizer.encode_text(text).tolist()


@pytest.mark.parametrize("text", ["word " * 20_000, "a line\n" * 9_000, "Par.\n\n" * 9_000, "x" * 50_000])
def test_pieces_of_long_texts_are_neither_tiny_nor_huge(text: str) -> None:
    pieces = tokenizer_with().pieces(text)
    assert "".join(pieces) == text
    if "x" not in text:
        assert max(map(len, pieces)) <= MAX_PIECE_CHARS
    if "\n\n" not in text:
        assert len(pieces) <= 2 * len(text) / MAX_PIECE_CHARS + 1


def test_text_of_a_tokenizer_with_other_borders_is_not_cut() -> None:
    definition = json.loads(tokenizer_with().definition)
    definition["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = ".+"
    other = TextTokenizer(json.dumps(definition))
    assert other.pieces("a\n\nb") == ["a\n\nb"]
    assert tokenizer_with().pieces("a\n\nb") == ["a\n\n", "b"]


@given(st.lists(st.integers(0, 4095) | st.integers(4080, 4095), max_size=30))
def test_tokens_read_one_by_one_give_the_text_of_all_of_them(ids: list[int]) -> None:
    tokenizer = tokenizer_with()
    reader = Detokenizer(tokenizer)
    pieces = [reader.push(i) for i in ids]
    whole = b"".join(tokenizer.token_bytes(i) for i in ids if i not in tokenizer.hidden_ids)
    # Without the beginning of a character at the very end.
    assert "".join(pieces) == codecs.getincrementaldecoder("utf-8")("replace").decode(whole)


def test_a_character_spread_over_tokens_comes_with_the_last_of_them() -> None:
    tokenizer = tokenizer_with()
    ids = tokenizer.encode_text("😀")
    assert len(ids) > 1
    reader = Detokenizer(tokenizer)
    assert [reader.push(int(i)) for i in ids] == [""] * (len(ids) - 1) + ["😀"]


def test_end_tokens_are_hidden_and_the_tags_of_thoughts_and_calls_are_not() -> None:
    tokenizer = tokenizer_with()
    shown = tokenizer.decode(tokenizer.encode("a<think>b</think><tool_call><|im_end|>"), hide_controls=True)
    assert shown == "a<think>b</think><tool_call>"


@pytest.mark.parametrize(
    ("text", "read"), [("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "😀"), ("\udc00b", "\ufffdb")]
)
def test_lone_surrogates_are_no_fault(text: str, read: str) -> None:
    assert tokenizer_with().decode(tokenizer_with().encode(text)) == read
    assert tokenizer_with().decode(tokenizer_with().encode_text(text)) == read


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    assert tokenizer_with().token_bytes(10**6) == b""
    assert tokenizer_with().token_bytes(-1) == b""


def test_end_ids_come_from_the_generation_config_and_the_family(tmp_path: Path) -> None:
    _write_checkpoint(tmp_path, generation_config={"eos_token_id": [7]})
    tokenizer = TextTokenizer.from_dir(tmp_path)
    ids = {tokenizer.controls["<|im_end|>"].id, tokenizer.controls["<|endoftext|>"].id}
    assert set(tokenizer.eos_ids) == ids | {7}


@pytest.mark.parametrize("template", ["plain", [{"name": "default", "template": "plain"}]])
def test_a_template_may_stand_in_the_tokenizer_config(tmp_path: Path, template: object) -> None:
    _write_checkpoint(tmp_path, tokenizer_config={"chat_template": template, "eos_token": {"content": "x"}})
    tokenizer = TextTokenizer.from_dir(tmp_path)
    assert tokenizer.chat_template == "plain"
    assert tokenizer.named_tokens == {"eos_token": "x"}


def test_the_template_file_beats_the_tokenizer_config(tmp_path: Path) -> None:
    _write_checkpoint(tmp_path, tokenizer_config={"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("new")
    assert TextTokenizer.from_dir(tmp_path).chat_template == "new"


def test_l7_a_template_in_a_json_file_of_its_own_is_found(tmp_path: Path) -> None:
    _write_checkpoint(tmp_path, tokenizer_config={})
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "own"}))
    assert TextTokenizer.from_dir(tmp_path).chat_template == "own"
    _write_checkpoint(tmp_path, tokenizer_config={"chat_template": "old"})
    assert TextTokenizer.from_dir(tmp_path).chat_template == "own"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert TextTokenizer.from_dir(tmp_path).chat_template == "new"


def test_a_folder_without_a_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^no readable tokenizer\.json in [^\n]*$"):
        TextTokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"model": {"type": "WordPiece"}, "decoder": null}'])
def test_what_is_no_byte_level_bpe_is_refused(content: str) -> None:
    with pytest.raises(CheckpointError):
        TextTokenizer(content)


def test_fingerprints_follow_the_content() -> None:
    own = tokenizer_with()
    other = tokenizer_with("another template")
    assert own.fingerprint == other.fingerprint
    assert own.template_fingerprint != other.template_fingerprint


def test_the_memo_keeps_to_its_bytes_and_drops_the_least_recently_used() -> None:
    memo = IdsMemo(budget_bytes=3 * 800)
    first = memo.recall("a", _hundred_ids)
    for text in ("b", "c"):
        memo.recall(text, _hundred_ids)
    assert memo.recall("a", _hundred_ids) is first
    memo.recall("d", _hundred_ids)
    assert "b" not in memo
    assert memo.recall("a", _hundred_ids) is first
    assert memo.n_bytes <= 3 * 800


def test_the_memo_keeps_nothing_larger_than_itself() -> None:
    memo = IdsMemo(budget_bytes=400)
    memo.recall("a", _hundred_ids)
    assert "a" not in memo
    assert memo.n_bytes == 0


def _hundred_ids(_: str) -> NDArray[np.uint32]:
    return np.zeros(100, dtype=np.uint32)


@given(st.text(max_size=60))
def test_x6_a_batch_of_one_has_the_ids_of_the_text(text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert (
        tokenizer_with().encode(text).tolist() == plain_tokenizer().encode(text, add_special_tokens=False).ids
    )


def test_x6_other_threads_run_while_a_long_text_is_encoded() -> None:
    text = base64.b64encode(random.Random(3).randbytes(200_000)).decode()
    done, n_ticks = threading.Event(), 0

    def encode() -> None:
        tokenizer_with().encode_text(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.wait(0.001):
        n_ticks += 1
    thread.join()
    assert n_ticks > 10


@given(
    st.text(max_size=80)
    | st.text("e\u0301a\u0308o1 ", max_size=80)
    | st.lists(st.sampled_from(["<|im_start|>", "the ", "  ", "1", "A", "e\u0301"]), max_size=40).map("".join)
)
def test_x6_no_text_has_fewer_tokens_than_the_bound(text: str) -> None:
    assert tokenizer_with().min_tokens(text) <= len(tokenizer_with().encode(text))


def test_x6_the_bound_tells_of_base64_and_of_prose_that_they_cannot_fit() -> None:
    encoded = base64.b64encode(random.Random(3).randbytes(30_000)).decode()
    assert tokenizer_with().min_tokens(encoded) > len(encoded) // 8
    assert tokenizer_with().min_tokens("the quick brown fox " * 1_000) > 500


def _normalised(text: str) -> str:
    return plain_tokenizer().normalizer.normalize_str(text)


def _write_checkpoint(path: Path, **files: object) -> None:
    (path / "tokenizer.json").write_text((DEMO / "tokenizer.json").read_text(encoding="utf-8"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
