"""A custom tool's text, read out of the arguments that wrap it, in any pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.responses.output_calls import CustomInput

TEXTS = st.text(st.characters(exclude_categories=[])) | st.text(alphabet='"\\\n{}:u0dD8😀é\ud83d\ude00')


def read(fragments: list[str]) -> str:
    reader = CustomInput()
    told = "".join([*map(reader.push, fragments), reader.finish()])
    assert told == reader.text
    return told


@given(TEXTS, st.booleans(), st.randoms(use_true_random=False))
def test_any_text_in_any_pieces_is_read_whole(text: str, ascii_only: bool, draw: object) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    n_cuts = draw.randrange(6)  # type: ignore[attr-defined]
    cuts = sorted(draw.randrange(len(written) + 1) for _ in range(n_cuts))  # type: ignore[attr-defined]
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    assert read(pieces) == json.loads(written)["input"]
    assert read(list(written)) == json.loads(written)["input"]


def test_text_comes_while_it_is_written() -> None:
    reader = CustomInput()
    assert [reader.push(piece) for piece in ('{"inp', 'ut": "*** Be', "gin\\", 'nP"', "}")] == [
        "",
        "*** Be",
        "gin",
        "\nP",
        "",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("{}", ""),
        ('{"input": {"a": 1}}', '{"a": 1}'),
        ('{"other": "x"}', ""),
        ("", ""),
        ('{"input": "cut sho', "cut sho"),
        ('{"input": "cut \\', "cut "),
        ('{"input": "cut \\ud83d\\u', "cut "),
        ('{"inp', '{"inp'),
    ],
)
def test_arguments_of_another_form_or_cut_short_lose_nothing(arguments: str, text: str) -> None:
    assert read(list(arguments)) == text
