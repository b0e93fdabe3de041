"""Turns items into messages: consecutive items that the model wrote become one message of the assistant.

The items of a response are a thought, then text, then calls, as the model wrote them; a chat template takes
the three together. So reasoning, messages and calls are collected until the user speaks or a tool answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from model.errors import InputError
from model.text.grammar.calls import INPUT
from server.responses.schema.items import (
    AdditionalToolsItem,
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    ImagePart,
    Item,
    MessageItem,
    Part,
    ReasoningItem,
    RefusalPart,
    ToolSearchCallItem,
    ToolSearchOutputItem,
)
from server.responses.schema.tools import Tool
from server.responses.toolbox import TOOL_SEARCH, functions_of, shown_name

MORE_TOOLS = "From here on you have these tools, too:"
BETWEEN = "\n\n"
"""Separates texts that the model wrote separately: two thoughts, or two messages, of one turn."""
Open = Callable[[str], str | None]
"""Gives the thought in a blob; None for a blob that this server has not made."""


class Placed(NamedTuple):
    """An item, and the field of the request that it came in."""

    item: Item
    where: str


@dataclass
class Conversation:
    """Messages in the form that :mod:`model.text.messages` takes, and the client's paths of them."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, message: dict[str, Any], where: str) -> None:
        self.names[self.next_place] = where
        self.messages.append(message)

    @property
    def next_place(self) -> str:
        return f"messages[{len(self.messages)}]"


@dataclass
class _Said:
    """The assistant's items since the last message of another role."""

    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    wheres: list[str] = field(default_factory=list)
    call_wheres: list[str] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": BETWEEN.join(filter(None, self.texts))}
        if self.thoughts:
            message["reasoning_content"] = BETWEEN.join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def conversation_of(placed: Sequence[Placed], instructions: str | None, open_sealed: Open) -> Conversation:
    """The ``instructions`` and ``placed`` items as messages.

    Raises:
        InputError: an item cannot become a message.
    """
    told = Conversation()
    if instructions is not None:
        told.add({"role": "system", "content": instructions}, "instructions")
    said = _Said()
    for item, where in _outputs_behind_calls(placed):
        if _add_to(said, item, where, open_sealed):
            said.wheres.append(where)
        elif not is_head(item, told):
            said = _spoken(told, said)
            told.add(_others_message(item), where)
            _name_parts(told, item, where)
    _spoken(told, said)
    return told


def is_head(item: Item, told: Conversation) -> bool:
    """Whether ``item`` adds tools to the head of the prompt, because no message of the user precedes it."""
    return isinstance(item, AdditionalToolsItem) and not any(m["role"] == "user" for m in told.messages)


def _told_of(tools: Sequence[Tool]) -> str:
    """Tools as the head of a prompt has them, one per line."""
    definitions = (function.definition for tool in tools for function in functions_of(tool))
    return "\n".join(json.dumps(definition, ensure_ascii=False) for definition in definitions)


def _add_to(said: _Said, item: Item, where: str, open_sealed: Open) -> bool:
    """Collect ``item`` if it is the assistant's."""
    match item:
        case MessageItem(role="assistant"):
            if _has_pictures(item.content):
                raise InputError(
                    f"'{where}': a message of the assistant can only be text.", param=f"{where}.content"
                )
            said.texts.append(_plain(item.content))
        case ReasoningItem():
            thought = _thought(item, where, open_sealed)
            if thought:
                said.thoughts.append(thought)
        case FunctionCallItem():
            _add_call(said, item.call_id, shown_name(item.name, item.namespace), item.arguments, where)
        case CustomCallItem():
            arguments = json.dumps({INPUT: item.input}, ensure_ascii=False)
            _add_call(said, item.call_id, shown_name(item.name, item.namespace), arguments, where)
        case ToolSearchCallItem():
            text = item.arguments
            arguments = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            _add_call(said, item.call_id or item.id or "", TOOL_SEARCH, arguments, where)
        case _:
            return False
    return True


def _add_call(said: _Said, call_id: str, name: str, arguments: str, where: str) -> None:
    said.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
    said.call_wheres.append(where)


def _spoken(told: Conversation, said: _Said) -> _Said:
    """Make a message of what was collected from the assistant, and begin anew."""
    if said.wheres:
        for i, where in enumerate(said.call_wheres):
            told.names[f"{told.next_place}.tool_calls[{i}]"] = where
            told.names[f"{told.next_place}.tool_calls[{i}].function"] = where
        told.add(said.message(), said.wheres[0])
    return _Said()


def _others_message(item: Item) -> dict[str, Any]:
    match item:
        case MessageItem():
            return {"role": item.role, "content": _content(item.content)}
        case CallOutputItem():
            return {"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)}
        case ToolSearchOutputItem():
            return {
                "role": "tool",
                "tool_call_id": item.call_id or item.id,
                "content": _told_of(item.tools),
            }
        case AdditionalToolsItem():
            return {"role": "system", "content": f"{MORE_TOOLS}\n{_told_of(item.tools)}"}
    raise AssertionError(f"{type(item).__name__} is the assistant's")


def _name_parts(told: Conversation, item: Item, where: str) -> None:
    place = f"messages[{len(told.messages) - 1}]"
    if isinstance(item, CallOutputItem):
        told.names[f"{place}.content"] = f"{where}.output"
        told.names[f"{place}.tool_call_id"] = f"{where}.call_id"


def _content(content: str | list[Part] | None) -> str | list[dict[str, Any]]:
    """A message's content for the template; as one string if all of it is text."""
    if isinstance(content, list) and _has_pictures(content):
        return [_part(part) for part in content]
    return _plain(content)


def _has_pictures(content: str | list[Part] | None) -> bool:
    return isinstance(content, list) and any(isinstance(part, ImagePart) for part in content)


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        image = {"url": part.image_url, "detail": part.detail}
        return {
            "type": "image_url",
            "image_url": {name: value for name, value in image.items() if value is not None},
        }
    return {"type": "text", "text": _text(part)}


def _plain(content: str | Sequence[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(map(_text, content))


def _text(part: Part) -> str:
    assert not isinstance(part, ImagePart)
    return part.refusal if isinstance(part, RefusalPart) else part.text


def _thought(item: ReasoningItem, where: str, open_sealed: Open) -> str:
    """The plain thought, or else the sealed one, or else its summary.

    Raises:
        InputError: there is only a blob, which this server has not made.
    """
    if item.content:
        return _plain(item.content)
    sealed = open_sealed(item.encrypted_content) if item.encrypted_content else ""
    if sealed:
        return sealed
    summary = BETWEEN.join(part.text for part in item.summary or ())
    if sealed is None and not summary:
        raise InputError(
            f"'{where}.encrypted_content' was made by another server, or before this one was restarted.",
            param=f"{where}.encrypted_content",
            code="invalid_encrypted_content",
        )
    return summary


def _outputs_behind_calls(placed: Sequence[Placed]) -> Iterator[Placed]:
    """``placed`` with results that precede their own calls moved behind all calls of that turn."""
    calls = {one.item.call_id for one in placed if isinstance(one.item, FunctionCallItem | CustomCallItem)}
    seen: set[str | None] = set()
    early: list[Placed] = []
    for one in placed:
        item = one.item
        if isinstance(item, FunctionCallItem | CustomCallItem):
            seen.add(item.call_id)
        elif isinstance(item, CallOutputItem) and item.call_id in calls and item.call_id not in seen:
            early.append(one)
            continue
        elif not isinstance(item, ReasoningItem | ToolSearchCallItem) and early:
            ready = [output for output in early if getattr(output.item, "call_id", None) in seen]
            if not (isinstance(item, MessageItem) and item.role == "assistant"):
                yield from ready
                early = [output for output in early if output not in ready]
        yield one
    yield from early
