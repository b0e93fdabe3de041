"""Items to messages: who said what, in whose one message, and where a client finds what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model.errors import InputError
from server.errors import NotFoundError
from server.responses.decode import Decoded, Sender, decode
from server.responses.kept.seal import Seal
from server.responses.kept.store import ResponseStore, Shelf
from server.responses.schema.requests import ResponsesRequest

USER = {"role": "user", "content": "Hi"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
TEXT = {"role": "assistant", "content": [{"type": "output_text", "text": "Well."}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
FUNCTION = {"type": "function", "name": "f"}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{**FUNCTION, "name": "h"}]}
SEAL = Seal(b"k" * 32)


def decoded(body: dict[str, Any], tenant: str | None = None, store: ResponseStore | None = None) -> Decoded:
    request = ResponsesRequest.model_validate(body)
    return decode(request, Sender(id="resp_1", tenant=tenant), Shelf(store or ResponseStore(1000), SEAL))


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [dict(message) for message in decoded({"input": list(items), **fields}).turn.messages]


def call(call_id: str, name: str = "f", arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_string_is_what_the_user_says_behind_the_instructions() -> None:
    assert decoded({"input": "Hi", "instructions": "Be brief."}).turn.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_what_the_model_wrote_between_two_turns_of_others_is_one_message() -> None:
    told = messages(USER, THOUGHT, TEXT, CALL, {**CALL, "call_id": "c2"}, OUTPUT, THOUGHT, TEXT, USER)
    assert told == [
        USER,
        {
            "role": "assistant",
            "content": "Well.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("c1"), call("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "Well.", "reasoning_content": "Hm."},
        USER,
    ]


def test_thoughts_and_texts_that_were_written_apart_stay_apart() -> None:
    told = messages(USER, THOUGHT, TEXT, THOUGHT, TEXT)
    assert told[1] == {"role": "assistant", "content": "Well.\n\nWell.", "reasoning_content": "Hm.\n\nHm."}


def test_a_call_without_a_thought_or_a_word_is_a_message_of_its_own() -> None:
    assert messages(USER, CALL, OUTPUT)[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [call("c1")],
    }


@pytest.mark.parametrize(
    "order", [(OUTPUT, CALL), (OUTPUT, THOUGHT, CALL), (OUTPUT, TEXT, CALL), (OUTPUT, CALL, TEXT)]
)
def test_a_result_that_stands_before_its_call_is_moved_behind_it(order: tuple[dict[str, Any], ...]) -> None:
    told = messages(USER, *order, USER)
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "user"]


def test_a_result_may_be_text_in_parts_and_messages_may_be_too() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    told = messages({"role": "user", "content": parts}, CALL, {**OUTPUT, "output": parts})
    assert (told[0]["content"], told[2]["content"]) == ("ab", "ab")


def test_pictures_are_handed_on_in_the_neutral_form() -> None:
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "high"},
    ]
    assert messages({"role": "user", "content": parts})[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "high"}},
    ]


@pytest.mark.parametrize(
    ("item", "thought"),
    [
        ({"content": [{"type": "reasoning_text", "text": "raw"}], "encrypted_content": "x"}, "raw"),
        ({"encrypted_content": SEAL.close("sealed", None), "summary": []}, "sealed"),
        (
            {
                "encrypted_content": SEAL.close("sealed", None),
                "summary": [{"type": "summary_text", "text": "s"}],
            },
            "sealed",
        ),
        ({"encrypted_content": "foreign", "summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        (
            {"encrypted_content": SEAL.close("x", "b"), "summary": [{"type": "summary_text", "text": "s"}]},
            "s",
        ),
        (
            {"summary": [{"type": "summary_text", "text": "s"}, {"type": "summary_text", "text": "t"}]},
            "s\n\nt",
        ),
        ({"summary": [], "content": [], "encrypted_content": None}, None),
    ],
)
def test_a_thought_is_read_in_the_clear_else_sealed_else_from_its_summary(
    item: dict[str, Any], thought: str | None
) -> None:
    told = messages(USER, {"type": "reasoning", **item}, TEXT)
    assert told[1].get("reasoning_content") == thought


def test_a_blob_of_somebody_elses_with_nothing_beside_it_is_refused() -> None:
    blob = SEAL.close("x", "b")
    with pytest.raises(InputError, match=r"'input\[1\].encrypted_content'") as caught:
        messages(USER, {"type": "reasoning", "encrypted_content": blob, "summary": []}, TEXT)
    assert caught.value.param == "input[1].encrypted_content"
    assert caught.value.code == "invalid_encrypted_content"


def test_calls_of_every_kind_are_told_as_the_tools_are_shown() -> None:
    told = messages(
        USER,
        {**CALL, "namespace": "agents"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'say "ä"'},
        {"type": "tool_search_call", "call_id": "c3", "arguments": {"query": "q"}, "execution": "client"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
        {"type": "tool_search_output", "call_id": "c3", "tools": [FUNCTION]},
    )
    assert told[1]["tool_calls"] == [
        call("c1", "agents__f"),
        call("c2", "patch", '{"input": "say \\"ä\\""}'),
        call("c3", "tool_search", '{"query": "q"}'),
    ]
    assert told[3] == {
        "role": "tool",
        "tool_call_id": "c3",
        "content": '{"type": "function", "function": {"name": "f"}}',
    }


def test_tools_are_shown_as_functions_once_each() -> None:
    body = {
        "input": [
            {"type": "additional_tools", "role": "developer", "tools": [{**FUNCTION, "name": "h"}, FUNCTION]},
            USER,
        ],
        "tools": [
            {**FUNCTION, "description": "d", "parameters": {"type": "object"}, "strict": True},
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
            {"type": "namespace", "name": "mcp__a__", "tools": [{**FUNCTION, "name": "g"}]},
            {"type": "tool_search", "execution": "client", "description": "find"},
            {"type": "web_search", "external_web_access": False},
        ],
    }
    with pytest.raises(InputError, match="Two tools are named 'f'") as caught:
        decoded(body)
    assert caught.value.param == "input[0].tools[1].name"
    body["input"][0]["tools"].pop()
    shown = [tool["function"] for tool in decoded(body).turn.tools]
    assert [tool["name"] for tool in shown] == ["f", "patch", "mcp__a__g", "tool_search", "h"]
    assert list(shown[0]) == ["name", "description", "parameters", "strict"]
    assert shown[1]["parameters"]["required"] == ["input"]
    assert decoded(body).turn.messages == [USER]


def test_tools_that_come_later_are_told_of_where_they_come_and_leave_the_head_as_it_was() -> None:
    turn = decoded(
        {
            "input": [
                USER,
                {"type": "additional_tools", "role": "developer", "tools": [{**FUNCTION, "name": "g"}]},
                {"type": "tool_search_call", "call_id": "c3", "arguments": {}},
                {"type": "tool_search_output", "call_id": "c3", "tools": [AGENTS, FUNCTION]},
            ],
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "name": "h"},
        }
    ).turn
    assert turn.tools == [{"type": "function", "function": {"name": "f"}}]
    assert [tool["function"]["name"] for tool in turn.late_tools] == ["g", "agents__h"]
    assert [message["role"] for message in turn.messages] == ["user", "system", "assistant", "tool"]
    for place, name in ((1, "g"), (3, "agents__h"), (3, "f")):
        assert json.dumps({"type": "function", "function": {"name": name}}) in turn.messages[place]["content"]
    assert turn.tool_choice.names == ("agents__h",)


@pytest.mark.parametrize(
    ("choice", "mode", "names", "parallel"),
    [
        (None, "auto", None, True),
        ("none", "none", None, True),
        ("required", "required", None, True),
        ({"type": "function", "name": "f"}, "required", ("f",), False),
        ({"type": "custom", "name": "patch"}, "required", ("patch",), False),
        ({"type": "function", "name": "g", "namespace": "ns"}, "required", ("ns__g",), False),
        ({"type": "function", "name": "g"}, "required", ("ns__g",), False),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            "auto",
            ("f",),
            True,
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
            "required",
            ("patch",),
            True,
        ),
    ],
)
def test_every_form_of_tool_choice_is_understood(
    choice: Any, mode: str, names: tuple[str, ...] | None, parallel: bool
) -> None:
    tools = [
        FUNCTION,
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "ns", "tools": [{**FUNCTION, "name": "g"}]},
    ]
    told = decoded({"input": "Hi", "tools": tools, "tool_choice": choice}).turn.tool_choice
    assert (told.mode, told.names, told.parallel) == (mode, names, parallel)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "name": "x"}, "tool_choice.name"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "x"}]},
            "tool_choice.tools[0].name",
        ),
    ],
)
def test_a_choice_of_a_tool_that_is_not_there_is_refused(choice: Any, param: str) -> None:
    with pytest.raises(InputError, match="not one of the tools") as caught:
        decoded({"input": "Hi", "tools": [FUNCTION], "tool_choice": choice})
    assert caught.value.param == param


def test_what_is_not_kept_cannot_be_named() -> None:
    with pytest.raises(NotFoundError) as caught:
        decoded({"input": [USER, {"type": "item_reference", "id": "msg_1"}]})
    assert (caught.value.param, caught.value.code) == ("input[1].id", "item_not_found")
    with pytest.raises(NotFoundError) as caught:
        decoded({"input": "Hi", "previous_response_id": "resp_x"})
    assert caught.value.code == "previous_response_not_found"


def test_context_of_reasoning_is_for_templates_that_keep_thoughts() -> None:
    for context, kwargs in (
        ("all_turns", {"preserve_thinking": True}),
        ("current_turn", {"preserve_thinking": False}),
        ("auto", {}),
    ):
        told = decoded({"input": "Hi", "reasoning": {"context": context}}).turn
        assert told.chat_template_kwargs == kwargs


def test_a_session_is_named_by_the_header_the_key_the_metadata_or_the_thread_in_this_order() -> None:
    request = ResponsesRequest.model_validate(
        {"input": "Hi", "prompt_cache_key": "k", "metadata": {"session_id": "m"}}
    )
    shelf = Shelf(ResponseStore(1000), SEAL)
    only_metadata = request.model_copy(update={"prompt_cache_key": None})
    nothing = only_metadata.model_copy(update={"metadata": None})
    everything = Sender(id="r", session="h", fallback="t")
    no_header = Sender(id="r", fallback="t")
    cases = [(everything, request), (no_header, request), (no_header, only_metadata), (no_header, nothing)]
    assert [decode(asked, who, shelf).turn.session for who, asked in cases] == ["h", "k", "m", "t"]
    assert decode(nothing, Sender(id="r"), shelf).turn.session is None
