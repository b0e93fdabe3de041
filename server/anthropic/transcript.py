"""Turns the system prompt and the messages of a request into those of a turn, and maps their paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from server.anthropic.blocks import thought_in
from server.anthropic.schema.blocks import (
    AssistantBlock,
    Base64Source,
    ImageBlock,
    RedactedThinkingBlock,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserBlock,
)
from server.anthropic.schema.requests import AssistantMessage, Message, SystemMessage, UserMessage
from server.anthropic.schema.tools import ToolAdditionBlock, ToolName, ToolRemovalBlock
from server.anthropic.toolbox import Toolbox

BILLING = "x-anthropic-billing-header"
"""Claude Code writes its version and a digest of the conversation there, which differs in every session and
is of no use to the model."""
ERROR = "Error: "
"""Tells the model that a tool has failed, for which its template has no place."""

Part = dict[str, Any]


@dataclass
class Transcript:
    """A conversation, read block by block.

    Attributes:
        toolbox: the tools; messages add and remove some.
        messages: in the form that ``model/text/messages.py`` takes.
        names: the path in the request of each message and of each of their parts.
    """

    toolbox: Toolbox
    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def read(self, system: str | Sequence[TextBlock] | None, messages: Sequence[Message]) -> None:
        """Read the messages of a request.

        Raises:
            InputError: a message refers to an unknown tool.
        """
        self._read_system(system)
        last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        for i, message in enumerate(messages):
            where = f"messages[{i}]"
            match message:
                case SystemMessage():
                    is_cleared = message.clear_at == "next_user_message" and i < last_user
                    self._read_late_system(message, where, is_cleared=is_cleared)
                case UserMessage():
                    self._read_user(message, where)
                case AssistantMessage():
                    self._add(where, **_assistant(message.content))
                    self._name_calls(message, where)

    def _add(self, where: str, **message: Any) -> str:
        """Append ``message``, whose path in the request is ``where``; its path in the turn."""
        path = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.names[path] = where
        return path

    def _read_system(self, system: str | Sequence[TextBlock] | None) -> None:
        texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
        kept = [text for text in map(_without_billing, texts) if text]
        if kept:
            self._add("system", role="system", content="\n\n".join(kept))

    def _read_late_system(self, message: SystemMessage, where: str, *, is_cleared: bool) -> None:
        if isinstance(message.content, str):
            texts = [] if is_cleared else [message.content]
        else:
            texts = list(self._system_texts(message.content, where, is_cleared=is_cleared))
        content = "".join(texts)
        if content:
            self._add(where, role="system", content=content)

    def _system_texts(
        self,
        blocks: Sequence[TextBlock | ToolAdditionBlock | ToolRemovalBlock],
        where: str,
        *,
        is_cleared: bool,
    ) -> Iterator[str]:
        for kind, group in groupby(enumerate(blocks), lambda pair: type(pair[1])):
            if kind is ToolAdditionBlock:
                additions = [
                    (block.tool, f"{where}.content[{j}].tool")
                    for j, block in group
                    if isinstance(block, ToolAdditionBlock)
                ]
                yield f"{self.toolbox.bring_in(additions)}\n"
                continue
            for j, block in group:
                if isinstance(block, ToolRemovalBlock):
                    yield f"{self.toolbox.withdraw(block.tool, f'{where}.content[{j}].tool')}\n"
                elif isinstance(block, TextBlock) and not is_cleared:
                    yield block.text

    def _read_user(self, message: UserMessage, where: str) -> None:
        if isinstance(message.content, str):
            self._add(where, role="user", content=message.content)
            return
        n_before = len(self.messages)
        for is_result, group in groupby(
            enumerate(message.content), lambda pair: pair[1].type == "tool_result"
        ):
            if not is_result:
                self._add_said(list(group), where)
                continue
            for j, block in group:
                if isinstance(block, ToolResultBlock):
                    self._add_result(block, f"{where}.content[{j}]")
        if len(self.messages) == n_before:
            self._add(where, role="user", content="")

    def _add_said(self, blocks: Sequence[tuple[int, UserBlock]], where: str) -> None:
        parts = [_part(block) for _, block in blocks if isinstance(block, TextBlock | ImageBlock)]
        content = _joined(parts)
        if content:
            path = self._add(where, role="user", content=content)
            if not isinstance(content, str):
                self.names |= {
                    f"{path}.content[{p}]": f"{where}.content[{j}]" for p, (j, _) in enumerate(blocks)
                }

    def _add_result(self, block: ToolResultBlock, where: str) -> None:
        head = ERROR if block.is_error else ""
        if block.content is None or isinstance(block.content, str):
            content: str | list[Part] = head + (block.content or "")
        else:
            parts = list(self._result_parts(block.content, where))
            content = _joined([{"type": "text", "text": head}, *parts] if head else parts)
        path = self._add(where, role="tool", tool_call_id=block.tool_use_id, content=content)
        if not isinstance(content, str):
            self.names |= {f"{path}.content[{p}]": f"{where}.content" for p in range(len(content))}

    def _result_parts(self, blocks: Sequence[ResultBlock], where: str) -> Iterator[Part]:
        for kind, group in groupby(enumerate(blocks), lambda pair: type(pair[1])):
            if kind is ToolReferenceBlock:
                found = [
                    (ToolName(type="tool_reference", name=block.tool_name), f"{where}.content[{j}].tool_name")
                    for j, block in group
                    if isinstance(block, ToolReferenceBlock)
                ]
                yield {"type": "text", "text": self.toolbox.bring_in(found)}
                continue
            for _, block in group:
                if isinstance(block, TextBlock | ImageBlock):
                    yield _part(block)

    def _name_calls(self, message: AssistantMessage, where: str) -> None:
        path = f"messages[{len(self.messages) - 1}]"
        uses = [j for j, block in enumerate(message.content) if isinstance(block, ToolUseBlock)]
        self.names |= {f"{path}.tool_calls[{c}]": f"{where}.content[{j}]" for c, j in enumerate(uses)}


def _without_billing(text: str) -> str:
    """``text`` without Claude Code's billing line."""
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def _assistant(content: str | Sequence[AssistantBlock]) -> dict[str, Any]:
    """All blocks as one message: thoughts first, then text, then calls, as templates write them."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(block.text for block in content if isinstance(block, TextBlock)),
    }
    thoughts = [thought for block in content if (thought := _thought(block))]
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    calls = [block for block in content if isinstance(block, ToolUseBlock)]
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}}
            for call in calls
        ]
    return message


def _thought(block: AssistantBlock) -> str | None:
    match block:
        case ThinkingBlock():
            return block.thinking or thought_in(block.signature)
        case RedactedThinkingBlock():
            return thought_in(block.data)
        case _:
            return None


def _part(block: TextBlock | ImageBlock) -> Part:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    source = block.source
    url = f"data:{source.media_type};base64,{source.data}" if isinstance(source, Base64Source) else source.url
    return {"type": "image_url", "image_url": {"url": url}}


def _joined(parts: Sequence[Part]) -> str | list[Part]:
    """``parts`` as one string if all of them are text, otherwise as they are."""
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return list(parts)
