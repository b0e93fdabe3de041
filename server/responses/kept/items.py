"""Input items as the API lists them: with an id, a status, and content in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from server.responses.given_back import tool_given_back
from server.responses.kept.records import new_id
from server.responses.schema.items import (
    AdditionalToolsItem,
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    ImagePart,
    InputItem,
    Item,
    MessageItem,
    Part,
    ReasoningItem,
    RefusalPart,
    ToolSearchCallItem,
    ToolSearchOutputItem,
)
from server.responses.schema.replies import ItemBody
from server.responses.schema.tools import Tool

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
}
_ITEM: TypeAdapter[Any] = TypeAdapter(InputItem)


def item_of(body: ItemBody) -> Item:
    """A listed or generated item as an item of a request."""
    item: Item = _ITEM.validate_python(body)
    return item


def kept(item: Item) -> ItemBody:
    """``item`` as it is listed; it gets an id if it has none."""
    body: ItemBody = {"id": item.id or new_id(_PREFIXES[item.type]), "type": item.type}
    if not isinstance(item, AdditionalToolsItem):  # the only kind without a status
        body["status"] = item.status or "completed"
    return body | _fields(item)


def _fields(item: Item) -> dict[str, Any]:
    match item:
        case MessageItem():
            phase = {} if item.phase is None else {"phase": item.phase}
            return {"role": item.role, "content": _parts(item.content, item.role == "assistant"), **phase}
        case ReasoningItem():
            return _given(item, "content", "encrypted_content") | {
                "summary": [{"type": "summary_text", "text": part.text} for part in item.summary or ()]
            }
        case FunctionCallItem():
            return _given(item, "call_id", "name", "namespace", "arguments")
        case CustomCallItem():
            return _given(item, "call_id", "name", "namespace", "input")
        case CallOutputItem():
            output = item.output if isinstance(item.output, str) else _parts(item.output, False)
            return {"call_id": item.call_id or "", "output": output}
        case ToolSearchCallItem():
            return _given(item, "call_id", "execution") | {"arguments": item.arguments}
        case ToolSearchOutputItem():
            return _given(item, "call_id", "execution") | {"tools": _tools(item.tools)}
        case AdditionalToolsItem():
            return {"role": item.role, "tools": _tools(item.tools)}


def _tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [tool_given_back(tool) for tool in tools]


def _given(item: Item, *names: str) -> dict[str, Any]:
    return item.model_dump(include=set(names), exclude_none=True)


def _parts(content: str | Sequence[Part] | None, is_assistant: bool) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [_text(content, is_assistant)]
    return [_part(part, is_assistant) for part in content]


def _part(part: Part, is_assistant: bool) -> dict[str, Any]:
    match part:
        case ImagePart():
            return {"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"}
        case RefusalPart() if is_assistant:
            return {"type": "refusal", "refusal": part.refusal}
        case RefusalPart():
            return _text(part.refusal, is_assistant)
        case _:
            return _text(part.text, is_assistant)


def _text(text: str, is_assistant: bool) -> dict[str, Any]:
    if is_assistant:
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}
