"""What the model reads of a request's blocks, and what stays outside."""

from __future__ import annotations

from typing import Any

import pytest

from model.errors import InputError
from server.anthropic.blocks import carrying, naming
from tests.fakes.anthropic_asking import turn

HI = {"role": "user", "content": "Hi"}
MARK = {"type": "ephemeral"}
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.a21; cc_entrypoint=cli;"


def text(content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **fields}


def use(name: str = "f", call_id: str = "toolu_1", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(content: Any = ..., call_id: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}
    return {name: value for name, value in block.items() if value is not ...}


def messages(*sent: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return list(turn(messages=list(sent), **fields).messages)


@pytest.mark.parametrize("wrap", ["string", "block", "marked"])
def test_a_string_is_one_text_block_and_a_cache_mark_changes_nothing(wrap: str) -> None:
    def said(content: str) -> Any:
        return {
            "string": content,
            "block": [text(content)],
            "marked": [text(content, cache_control={**MARK, "ttl": "1h"}, citations=None)],
        }[wrap]

    sent = [
        {"role": "user", "content": said("Hi")},
        {"role": "system", "content": said("Be brief.")},
        {"role": "assistant", "content": said("Hello.")},
        {"role": "user", "content": said("Bye")},
    ]
    top = {"cache_control": MARK} if wrap == "marked" else {}
    assert messages(*sent, system=said("You help."), **top) == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]


def test_the_billing_line_is_dropped_wherever_the_system_prompt_begins_with_it() -> None:
    assert messages(HI, system=[text(BILLING), text("A"), text("B")])[0]["content"] == "A\n\nB"
    assert messages(HI, system=[text(BILLING)]) == [HI]
    assert messages(HI, system=f"{BILLING}\nYou help.")[0]["content"] == "You help."
    assert messages(HI, system=f"About {BILLING}")[0]["content"] == f"About {BILLING}"


def test_a_thought_text_and_calls_are_one_message() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        text("I look."),
        use("f", "toolu_1", a=1),
        use("g", "toolu_2"),
    ]
    assert messages(HI, {"role": "assistant", "content": blocks}, {"role": "user", "content": "Go on"})[
        1
    ] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": {}}},
        ],
    }


def test_each_result_is_a_message_and_text_behind_them_is_the_users() -> None:
    blocks = [
        result("one", cache_control=MARK, is_error=False),
        result([text("tw"), text("o")], "toolu_2"),
        result(..., "toolu_3"),
        result(None, "toolu_4"),
        text("And "),
        text("now?"),
    ]
    assert messages(HI, {"role": "user", "content": blocks})[1:] == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "one"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "two"},
        {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
        {"role": "tool", "tool_call_id": "toolu_4", "content": ""},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize("content", ["no such file", [text("no such file")]])
def test_a_failed_tool_says_so(content: Any) -> None:
    blocks = [result(content, is_error=True)]
    assert messages(HI, {"role": "user", "content": blocks})[1]["content"] == "Error: no such file"


def test_images_are_parts_among_the_text() -> None:
    inline = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    said, returned = messages(
        {"role": "user", "content": [text("See"), inline]},
        {"role": "user", "content": [result([linked], is_error=True)]},
    )
    assert said["content"] == [
        text("See"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    assert returned["content"] == [
        text("Error: "),
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]


@pytest.mark.parametrize(
    ("block", "thought"),
    [
        ({"type": "thinking", "thinking": "Seen.", "signature": carrying("Hidden.")}, "Seen."),
        ({"type": "thinking", "thinking": "", "signature": carrying("Hidden.")}, "Hidden."),
        ({"type": "thinking", "thinking": "", "signature": naming("Hidden.")}, None),
        ({"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"}, None),
        ({"type": "thinking", "thinking": "", "signature": ""}, None),
        ({"type": "redacted_thinking", "data": carrying("Hidden.")}, "Hidden."),
        ({"type": "redacted_thinking", "data": "EqQBCgIYAhIM"}, None),
    ],
)
def test_a_thought_comes_back_by_its_text_or_by_its_signature(block: Any, thought: str | None) -> None:
    sent = {"role": "assistant", "content": [block, text("Yes.")]}
    told = messages(HI, sent, HI)[1]
    assert told.get("reasoning_content") == thought
    assert told["content"] == "Yes."


def test_a_system_message_for_one_turn_is_gone_when_the_user_speaks_again() -> None:
    late = {"role": "system", "content": "It is noon.", "clear_at": "next_user_message"}
    assert messages(HI, late) == [HI, {"role": "system", "content": "It is noon."}]
    assert messages(HI, late, {"role": "assistant", "content": "Hm"}, HI)[1]["role"] == "assistant"
    kept = {**late, "clear_at": "never"}
    assert messages(HI, kept, HI)[1]["content"] == "It is noon."


def test_a_message_without_text_of_its_own_leaves_no_trace() -> None:
    effort = {"role": "system", "output_config": {"effort": "low"}}
    results = {"role": "user", "content": [result("one"), text("")]}
    assert messages(HI, effort, results) == [
        HI,
        {"role": "tool", "tool_call_id": "toolu_1", "content": "one"},
    ]
    assert messages({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


TOOLS = [
    {
        "name": "shown",
        "input_schema": {"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"},
    },
    {"name": "deferred", "description": "Späte.", "input_schema": {"type": "object"}, "defer_loading": True},
    {"name": "other", "input_schema": {"type": "object"}, "defer_loading": True},
]
DEFERRED = (
    '{"type": "function", "function": '
    '{"name": "deferred", "description": "Späte.", "parameters": {"type": "object"}}}'
)


def names(definitions: Any) -> list[str]:
    return [definition["function"]["name"] for definition in definitions]


def test_a_deferred_tool_is_shown_where_a_search_has_found_it() -> None:
    found = [text("2 hits"), {"type": "tool_reference", "tool_name": "deferred"}]
    again = [{"type": "tool_reference", "tool_name": "deferred"}]
    asked = turn(
        tools=TOOLS,
        messages=[
            HI,
            {"role": "user", "content": [result(found)]},
            {"role": "user", "content": [result(again)]},
        ],
    )
    assert names(asked.tools) == ["shown"]
    assert asked.tools[0]["function"]["parameters"] == {"type": "object"}
    assert names(asked.late_tools) == ["deferred"]
    assert asked.messages[1]["content"] == (
        f"2 hitsYou can call these tools from here on:\n<tools>\n{DEFERRED}\n</tools>"
    )
    assert asked.messages[2]["content"] == "You can call deferred from here on."


def test_a_system_message_brings_in_tools_and_withdraws_them() -> None:
    defined = {"type": "tool_definition", "definition": {"name": "new", "input_schema": {}}}
    asked = turn(
        tools=TOOLS,
        messages=[
            HI,
            {
                "role": "system",
                "content": [
                    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "deferred"}},
                    {"type": "tool_addition", "tool": defined, "cache_control": MARK},
                    {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "shown"}},
                ],
            },
        ],
    )
    assert names(asked.tools) == ["shown"]
    assert names(asked.late_tools) == ["deferred", "new"]
    assert asked.tool_choice.names == ("deferred", "new")
    content = asked.messages[1]["content"]
    assert content.startswith(f"You can call these tools from here on:\n<tools>\n{DEFERRED}\n")
    assert content.endswith("</tools>\nYou can no longer call shown.\n")


def test_a_tool_that_was_withdrawn_may_come_back() -> None:
    def change(kind: str) -> dict[str, Any]:
        return {
            "role": "system",
            "content": [{"type": kind, "tool": {"type": "tool_reference", "name": "shown"}}],
        }

    asked = turn(tools=TOOLS, messages=[HI, change("tool_removal"), change("tool_addition")])
    assert asked.tool_choice.names is None
    assert asked.messages[2]["content"] == "You can call shown from here on.\n"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {
                "messages": [
                    {"role": "user", "content": [result([{"type": "tool_reference", "tool_name": "x"}])]}
                ]
            },
            "messages[0].content[0].content[0].tool_name",
        ),
        (
            {
                "messages": [
                    HI,
                    {
                        "role": "system",
                        "content": [
                            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "x"}}
                        ],
                    },
                ]
            },
            "messages[1].content[0].tool",
        ),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[3].name"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "tool", "name": "shown"},
                "messages": [
                    HI,
                    {
                        "role": "system",
                        "content": [
                            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "shown"}}
                        ],
                    },
                ],
            },
            "tool_choice.name",
        ),
    ],
)
def test_a_tool_that_is_not_there_is_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InputError) as refused:
        turn(**fields)
    assert refused.value.param == param
