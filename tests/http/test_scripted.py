"""The whole server around a model that writes what a script says: streamed or whole, the answer is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import server.engine.assembly as assembly
from server.engine.admission import LoopOptions
from server.settings import Settings
from tests.fakes.asking import ask, stream
from tests.fakes.chatml import chat_with, tool
from tests.fakes.live_server import Live, live_demo
from tests.fakes.scripted import byte_ids, ids_of, xml_call
from tests.fakes.scripted_model import ScriptedForward, script

QUESTION = {"role": "user", "content": "Go on."}
TOOLS = [
    tool("f", a={"type": "string"}, n={"type": "integer"}, o={"type": "object"}),
    tool("g"),
]
END_ID = ids_of("<|im_end|>")[0]
CALL = xml_call("f", a="02134", n="5", o='{"b": "{}"}')
ARGUMENTS = {"a": "02134", "n": 5, "o": {"b": "{}"}}


@dataclass
class Author:
    """Decides what the model writes behind the prompt that comes next."""

    n_prompt: int = 0
    ids: list[int] = field(default_factory=list)

    def __call__(self, n_fed: int) -> int:
        return script(self.n_prompt, self.ids, END_ID)(n_fed)


@dataclass(frozen=True)
class Stage:
    server: Live
    author: Author

    def hear(self, ids: list[int], **fields: Any) -> dict[str, Any]:
        """The first choice of a whole reply whose tokens are ``ids``; the streamed one joins to the same."""
        thinks = fields.setdefault("enable_thinking", False)
        prompt = chat_with().render(
            [QUESTION], tools=fields.get("tools"), template_kwargs={"enable_thinking": thinks}
        )
        self.author.n_prompt, self.author.ids = len(prompt.ids), ids
        fields = {"max_tokens": 300, "logprobs": True, "top_logprobs": 1, "temperature": 0, **fields}
        whole = ask(self.server, QUESTION, **fields)
        chunks = stream(self.server, QUESTION, **fields, stream_options={"include_usage": True})
        for choice in whole["choices"]:
            assert join(chunks, choice["index"]) == comparable(choice)
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        # How many of the tokens were guessed depends on how long the machine took to compute them.
        thought = [
            body["usage"]["completion_tokens_details"]["reasoning_tokens"] for body in (chunks[-1], whole)
        ]
        assert thought[0] == thought[1]
        choice = whole["choices"][0]
        return {**comparable(choice), "usage": whole["usage"]}


def comparable(choice: dict[str, Any]) -> dict[str, Any]:
    """What must be the same however it was sent; ids of calls never are."""
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", ())
        ],
        "logprobs": (choice["logprobs"] or {"content": []})["content"],
        "finish": choice["finish_reason"],
    }


def join(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """The deltas of one choice, joined as clients join them."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    calls: list[list[str]] = []
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", ())):
        if "id" in piece:
            assert piece["index"] == len(calls)
            calls.append([piece["function"]["name"], ""])
        calls[piece["index"]][1] += piece["function"]["arguments"]
    return {
        "content": "".join(delta.get("content", "") for delta in deltas),
        "reasoning": "".join(delta.get("reasoning_content", "") for delta in deltas),
        "calls": [tuple(call) for call in calls],
        "logprobs": [
            entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]
        ],
        "finish": choices[-1]["finish_reason"],
    }


@pytest.fixture(scope="module", params=[0.0, 3600.0], ids=["token by token", "all at once"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    author = Author()
    with pytest.MonkeyPatch.context() as patch:
        load = assembly.load
        patch.setattr(
            assembly, "load", lambda *args, **kwargs: ScriptedForward(load(*args, **kwargs), author)
        )
        # A script begins where the prompt ends: the prompt is not to have a schema shown behind it.
        settings = Settings(show_schemas=False)
        with live_demo(settings, loop=LoopOptions(stream_interval_seconds=request.param)) as server:
            yield Stage(server, author)


def calls_of(heard: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in heard["calls"]]


@pytest.mark.parametrize("encode", [ids_of, byte_ids])
@pytest.mark.parametrize(
    "text", ["Plain.", "Żółć, 日本, 👩‍👩‍👧 and é", "", "  spaces \n\n", "a </think> b", "<|", "�"]
)
def test_text_comes_whole_in_whole_characters(stage: Stage, text: str, encode: Any) -> None:
    heard = stage.hear(encode(text))
    assert (heard["content"], heard["reasoning"], heard["finish"]) == (text, "", "stop")
    told = b"".join(bytes(entry["bytes"]) for entry in heard["logprobs"]).decode()
    assert told == text


@pytest.mark.parametrize("encode", [ids_of, byte_ids])
def test_d01_a_thought_and_its_content_are_told_apart(stage: Stage, encode: Any) -> None:
    heard = stage.hear(encode("Hm, ünd?\n</think>\n\nYes ✓."), enable_thinking=True)
    assert (heard["reasoning"], heard["content"], heard["finish"]) == ("Hm, ünd?", "Yes ✓.", "stop")
    cut = stage.hear(ids_of("one two three four"), enable_thinking=True, max_tokens=3)
    assert (cut["content"], cut["finish"]) == ("", "length")
    assert cut["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_c04_a_call_at_the_end_of_an_open_thought_is_delivered(stage: Stage) -> None:
    heard = stage.hear(ids_of(f"I call.\n{CALL}"), enable_thinking=True, tools=TOOLS)
    assert (heard["reasoning"], heard["finish"]) == ("I call.", "tool_calls")
    assert calls_of(heard) == [("f", ARGUMENTS)]


@pytest.mark.parametrize("encode", [ids_of, byte_ids])
def test_c05_c07_c08_calls_in_a_row_have_their_own_arguments(stage: Stage, encode: Any) -> None:
    heard = stage.hear(encode(f"So:\n\n{xml_call('g')}\n{xml_call('g')}\n{CALL}"), tools=TOOLS)
    assert (heard["content"], heard["finish"]) == ("So:", "tool_calls")
    assert calls_of(heard) == [("g", {}), ("g", {}), ("f", ARGUMENTS)]


@pytest.mark.parametrize(
    "text",
    [
        "```xml\n<tool_call>\n```",
        "The tag <tool_call> begins a call.",
        xml_call("unknown", a="x"),
        "<tool_call>\n<function=f",
        "</tool_call>",
    ],
)
def test_c06_what_is_no_call_is_text(stage: Stage, text: str) -> None:
    heard = stage.hear(ids_of(text), tools=TOOLS)
    assert (heard["content"], heard["calls"], heard["finish"]) == (text, [], "stop")


def test_c06_without_tools_a_call_is_text(stage: Stage) -> None:
    assert stage.hear(ids_of(CALL))["content"] == CALL


def test_c10_a_call_that_the_limit_cuts_ends_for_the_limit(stage: Stage) -> None:
    n_tokens = len(ids_of("<tool_call>\n<function=f>\n<parameter=a>\n021"))
    heard = stage.hear(ids_of(CALL), tools=TOOLS, max_tokens=n_tokens)
    assert heard["finish"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(heard["calls"][0][1])


@pytest.mark.parametrize("encode", [ids_of, byte_ids])
@pytest.mark.parametrize(
    ("stop", "text", "kept"),
    [
        ("own fox", "The brown fox.", "The br"),
        (["\nUser:"], "Hi.\nUser: you", "Hi."),
        (["ab", "abc"], "xxabc", "xx"),
        (["👩‍👧"], "so 👩‍👧 end", "so "),
        (["é"], "café!", "caf"),
        (["never", ""], "Hi.", "Hi."),
        (["abab"], "aba", "aba"),
    ],
)
def test_e03_a_stop_string_cuts_exactly(stage: Stage, stop: Any, text: str, kept: str, encode: Any) -> None:
    heard = stage.hear(encode(text), stop=stop)
    assert (heard["content"], heard["finish"]) == (kept, "stop")


def test_d05_a_thought_that_would_end_the_reply_is_closed_before_a_grammar(stage: Stage) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"const": 1}}}
    heard = stage.hear(ids_of("Hm."), enable_thinking=True, response_format=schema, max_tokens=...)
    assert (heard["reasoning"], heard["content"], heard["finish"]) == ("Hm.", "1", "stop")


def test_several_replies_join_each_for_itself(stage: Stage) -> None:
    heard = stage.hear(ids_of(f"So: {CALL}"), tools=TOOLS, n=3)
    assert calls_of(heard) == [("f", ARGUMENTS)]
