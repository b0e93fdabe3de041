"""From tokens to deltas: thoughts, content, stop strings, and how they keep out of each other's way."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.text.deltas import ContentDelta, ReasoningDelta
from model.text.reply import ReplyReader, close_thought_ids
from tests.fakes.chatml import tokenizer_with, tool
from tests.fakes.scripted import Joined, byte_ids, ids_of, read, xml_call

TOOLS = [tool("f", a={"type": "string"}, n={"type": "integer"}), tool("g")]
STOPS = [(), ("own fox",), ("\nUser:", "Us"), ("ab", "abc"), ("</tool_call>", "é")]

scraps = st.one_of(
    st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "</function>", "</parameter>"]),
    st.sampled_from(["<function=f>", "<function=h>", "<parameter=a>", "<parameter=n>", "<", "</", "par"]),
    st.sampled_from(
        ["\n", " ", "\n\n", "own ", "fox", "ab", "abc", "User:", "é", "😀", "5.0", '"q"', "text"]
    ),
    st.sampled_from([xml_call("f", a="x"), xml_call("g")]),
)
replies = st.lists(scraps, max_size=14).map("".join)
options = st.fixed_dictionaries(
    {
        "opens_thought": st.booleans(),
        "tools": st.sampled_from([None, TOOLS]),
        "stops": st.sampled_from(STOPS),
        "may_think": st.booleans(),
    }
)


@given(replies, options)
@settings(max_examples=500, deadline=None)
def test_however_the_text_is_cut_into_tokens_the_joined_deltas_are_the_same(
    text: str, options: dict[str, Any]
) -> None:
    whole, _ = read(ids_of(text), **options)
    torn, _ = read(byte_ids(text), **options)
    assert torn == whole


@given(replies, options, st.booleans(), st.data())
@settings(max_examples=500, deadline=None)
def test_tokens_read_together_are_read_as_one_by_one(
    text: str, options: dict[str, Any], torn: bool, data: st.DataObject
) -> None:
    ids = byte_ids(text) if torn else ids_of(text)
    options = {**options, "stops": ()}  # what a stop string ends is read token by token
    lone, reader = read(ids, **options)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))) | {0, len(ids)})
    together, joined = ReplyReader(tokenizer_with(), **options), Joined()
    told: list[int] = []
    for start, end in itertools.pairwise(cuts):
        joined.add(together.push_all(ids[start:end]))
        told += together.take_content_tokens()
    joined.add(together.finish())
    told += together.take_content_tokens()
    assert joined == lone
    assert tuple(told) == reader.take_content_tokens()
    assert together.content_ids == reader.content_ids
    assert together.n_reasoning_tokens == reader.n_reasoning_tokens
    assert together.n_tokens == reader.n_tokens


@given(replies, options)
@settings(max_examples=300, deadline=None)
def test_no_text_is_lost_and_none_is_invented(text: str, options: dict[str, Any]) -> None:
    joined, reader = read(ids_of(text), **{**options, "stops": ()})
    arguments = "".join("".join(call) for call in joined.calls).replace("\\n", "\n").replace('\\"', '"')
    delivered = joined.reasoning + joined.content + arguments
    if not joined.calls:
        assert _bare(delivered) == _bare(text)
    for char in set(_bare(delivered)) - set('{}":,'):
        assert delivered.count(char) <= text.count(char)
    assert reader.called_tools == any(_is_closed(arguments) for _, arguments in joined.calls)


@given(st.text(max_size=40), st.booleans())
@settings(deadline=None)
def test_plain_text_comes_back_whole(text: str, torn: bool) -> None:
    text = text.encode(errors="replace").decode()
    joined, _ = read(byte_ids(text) if torn else ids_of(text), may_think=False)
    plain = tokenizer_with().decode(ids_of(text), hide_controls=True)
    assert joined == Joined(content=text if torn else plain)


def test_the_thought_and_the_content_are_trimmed_where_they_meet() -> None:
    joined, reader = read(ids_of(" \nLet me see. \n\n</think>\n\n Yes. \n"), opens_thought=True)
    assert joined == Joined(reasoning="Let me see.", content=" Yes. \n")
    assert reader.n_reasoning_tokens == ids_of(" \nLet me see. \n\n</think>").__len__()


@pytest.mark.parametrize("text", ["<think>\nhm\n</think>\n\nYes.", "\n<think>hm</think>Yes."])
@pytest.mark.parametrize("opens_thought", [True, False])
def test_a_reply_may_open_its_thought_itself(text: str, opens_thought: bool) -> None:
    joined, _ = read(ids_of(text), opens_thought=opens_thought)
    assert joined == Joined(reasoning="hm", content="Yes.")


def test_tags_later_in_the_content_are_text() -> None:
    text = "The tags are <think> and </think>."
    assert read(ids_of(text))[0] == Joined(content=text)


def test_content_without_a_thought_keeps_its_space() -> None:
    assert read(ids_of("\n x \n"))[0] == Joined(content="\n x \n")


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_d01_a_thought_that_never_closes_takes_all_of_the_text(tools: Any) -> None:
    joined, reader = read(ids_of("Let me think about that\n"), opens_thought=True, tools=tools)
    assert joined == Joined(reasoning="Let me think about that")
    assert reader.in_thought
    assert reader.n_reasoning_tokens == reader.n_tokens


def test_d07_the_ids_that_close_a_thought_close_it() -> None:
    thought = ids_of("and so on and")
    closing = list(close_thought_ids(tokenizer_with()))
    joined, reader = read([*thought, *closing, *ids_of("Yes.")], opens_thought=True)
    assert joined == Joined(reasoning="and so on and", content="Yes.")
    assert not reader.in_thought
    assert reader.content_ids == [*closing[-1:], *ids_of("Yes.")]


@pytest.mark.parametrize(
    ("stops", "text", "kept", "stop"),
    [
        (("own fox",), "the brown fox jumps", "the br", "own fox"),
        (("\nUser:",), "Hi\nUser: you", "Hi", "\nUser:"),
        (("\nUser:",), "Hi\nUse", "Hi\nUse", None),
        (("abc", "abd"), "x ab abd", "x ab ", "abd"),
        (("abd", "ab"), "xabc", "x", "ab"),
        (("abc", "ab"), "xabc", "x", "ab"),
        (("aab",), "aaab", "a", "aab"),
        (("b", "a"), "xab", "x", "a"),
    ],
)
def test_e03_text_is_cut_exactly_before_the_stop_string_and_it_is_named(
    stops: tuple[str, ...], text: str, kept: str, stop: str | None
) -> None:
    for ids in (ids_of(text), byte_ids(text)):
        joined, reader = read(ids, stops=stops)
        assert joined == Joined(content=kept)
        assert reader.stopped == (kept != text)
        assert reader.stop == stop


def test_e03_only_what_may_become_a_stop_string_is_held_back() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=False, stops=("stop",))
    told = [reader.push(i) for i in byte_ids("so sto sx")]
    held = ["".join(d.text for d in deltas if isinstance(d, ContentDelta)) for deltas in told]
    assert held == ["", "so", " ", "", "", "", "sto ", "", "sx"]


def test_e03_stop_strings_in_a_thought_are_thought() -> None:
    joined, _ = read(ids_of("own fox</think>red own fox"), opens_thought=True, stops=("own fox",))
    assert joined == Joined(reasoning="own fox", content="red ")


def test_e03_stop_strings_inside_a_call_are_part_of_the_call() -> None:
    joined, reader = read(ids_of("Hm. " + xml_call("f", a="own fox")), stops=("own fox", "\n"), tools=TOOLS)
    assert joined == Joined(content="Hm.", calls=[["f", '{"a": "own fox"}']])
    assert not reader.stopped


def test_e03_a_stop_string_between_calls_ends_the_reply() -> None:
    text = xml_call("g") + "\nDone. " + xml_call("g")
    joined, reader = read(ids_of(text), stops=("Done",), tools=TOOLS)
    assert joined == Joined(calls=[["g", "{}"]])
    assert reader.stopped
    assert reader.n_calls == 1


def test_e03_a_stop_string_does_not_reach_across_a_call() -> None:
    joined, reader = read(ids_of(f"Us{xml_call('g')}er"), stops=("User",), tools=TOOLS)
    assert joined == Joined(content="User", calls=[["g", "{}"]])
    assert not reader.stopped


def test_e03_what_was_held_back_goes_through_the_other_readers_at_the_end() -> None:
    joined, _ = read(ids_of("hm</thi"), opens_thought=True, stops=("x",), tools=TOOLS)
    assert joined == Joined(reasoning="hm</thi")
    joined, _ = read(ids_of("<tool_call> <func"), stops=("function",), tools=TOOLS)
    assert joined == Joined(content="<tool_call> <func")


def test_e03_the_kept_tokens_end_at_the_cut() -> None:
    ids = byte_ids("ab é stop more")
    _, reader = read(ids, stops=("é stop",))
    assert reader.cut_token_index == len(b"ab ")
    _, reader = read(ids, stops=("nothing",))
    assert reader.cut_token_index == len(ids)


def test_a_token_that_reaches_over_the_cut_is_not_kept() -> None:
    token = next(i for i in ids_of("hello there") if len(tokenizer_with().token_bytes(i)) > 2)
    text = tokenizer_with().token_bytes(token).decode()
    _, reader = read([*byte_ids("x"), token], stops=(text[1:],))
    assert reader.stopped
    assert reader.cut_token_index == 1


def test_nothing_comes_out_after_a_stop_string() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=False, stops=("stop",))
    for token_id in ids_of("a stop b"):
        reader.push(token_id)
    assert reader.stopped
    assert [*itertools.chain(reader.push(ids_of("x")[0]), reader.finish())] == []


def test_an_empty_stop_string_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError):
        ReplyReader(tokenizer_with(), opens_thought=False, stops=("",))


def test_f06_content_tokens_are_told_once_in_order_and_without_the_thoughts() -> None:
    thought, content = ids_of("hm</think>"), byte_ids("é stays")
    reader = ReplyReader(tokenizer_with(), opens_thought=True, stops=("stop",))
    told: list[int] = []
    for token_id in [*thought, *content]:
        reader.push(token_id)
        told += reader.take_content_tokens()
    reader.finish()
    told += reader.take_content_tokens()
    assert told == list(range(len(thought), len(thought) + len(content)))


def test_f06_a_token_that_begins_in_dropped_space_is_content() -> None:
    (token,) = ids_of("\n\n\n")
    ids = [*ids_of("hm</think>"), token, *ids_of(" end")]
    joined, reader = read(ids, opens_thought=True)
    assert joined.content == "\n end"
    assert reader.take_content_tokens() == tuple(range(len(ids_of("hm</think>")), len(ids)))


@given(replies, options)
@settings(max_examples=200)
def test_f06_no_token_is_told_twice_and_all_of_the_content_is_told(
    text: str, options: dict[str, Any]
) -> None:
    reader = ReplyReader(tokenizer_with(), **options)
    ids, content, told = byte_ids(text), "", list[int]()
    for token_id in ids:
        content += "".join(d.text for d in reader.push(token_id) if isinstance(d, ContentDelta))
        told += reader.take_content_tokens()
    content += "".join(d.text for d in reader.finish() if isinstance(d, ContentDelta))
    told += reader.take_content_tokens()
    assert told == sorted(set(told))
    assert tokenizer_with().decode([ids[i] for i in told]) == content


@given(replies, options)
@settings(max_examples=200)
def test_f06_a_token_with_text_on_both_sides_of_a_border_is_told_once(
    text: str, options: dict[str, Any]
) -> None:
    reader = ReplyReader(tokenizer_with(), **options)
    told: list[int] = []
    for token_id in ids_of(text.replace("own ", "own  \t fox").replace("\n\n", " \n \n")):
        reader.push(token_id)
        told += reader.take_content_tokens()
    reader.finish()
    told += reader.take_content_tokens()
    assert told == sorted(set(told))


def test_f06_tokens_behind_a_stop_and_tokens_of_calls_are_no_content() -> None:
    ids = [*byte_ids("ab"), *ids_of(xml_call("g")), *byte_ids("c stop")]
    _, reader = read(ids, stops=("stop",), tools=TOOLS)
    assert reader.take_content_tokens() == (0, 1, len(ids) - 6, len(ids) - 5)


def test_adjacent_deltas_of_one_kind_come_as_one() -> None:
    reader = ReplyReader(tokenizer_with(), opens_thought=True)
    reader.push(byte_ids(" ")[0])
    assert reader.push(ids_of("hm")[0]) != []
    deltas = [*reader.push(tokenizer_with().controls["</think>"].id), *reader.finish()]
    assert all(isinstance(delta, ReasoningDelta) for delta in deltas)


@pytest.mark.parametrize("options", [{"opens_thought": True}, {"is_constrained": True}])
def test_t7_only_the_templates_own_line_ends_are_dropped(options: dict[str, Any]) -> None:
    close = "hm\n</think>" if "opens_thought" in options else ""
    for ids in (ids_of, byte_ids):
        assert read(ids(f"{close}\n\n    x = 1"), **options)[0].content == "    x = 1"
        assert read(ids(f"{close}\n\n\n  x"), **options)[0].content == "\n  x"
        assert read(ids(f"{close}x\n\ny"), **options)[0].content == "x\n\ny"


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_t8_a_character_that_a_reply_breaks_off_in_is_left_out(tools: Any) -> None:
    cut = byte_ids("😀")[:3]
    assert read([*byte_ids("so "), *cut], tools=tools)[0] == Joined(content="so ")
    assert read([*byte_ids("so "), *cut], tools=tools, opens_thought=True)[0] == Joined(reasoning="so")
    called, _ = read([*byte_ids("<tool_call><function=f><parameter=a>so "), *cut], tools=TOOLS)
    assert called.calls == [["f", '{"a": "so ']]
    # What can become no character in any way is still shown as such.
    assert read([*cut, *byte_ids("x")], tools=tools)[0] == Joined(content="\ufffdx")


def _bare(text: str) -> str:
    """Text without white space and without the tags that may open and close a thought."""
    for tag in ("<think>", "</think>"):
        text = text.replace(tag, "")
    return "".join(text.split())


def _is_closed(arguments: str) -> bool:
    return arguments.endswith("}")
