"""Scripted replies: text or token ids read through the real reader, and joined as a client joins them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from model.text.reply import ReplyReader
from tests.fakes.chatml import tokenizer_with


@dataclass
class Joined:
    """The sums of a reply's deltas: texts, and [name, arguments] of each call."""

    reasoning: str = ""
    content: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            match delta:
                case ReasoningDelta():
                    assert delta.text
                    self.reasoning += delta.text
                case ContentDelta():
                    assert delta.text
                    self.content += delta.text
                case ToolCallStart():
                    assert delta.index == len(self.calls)
                    self.calls.append([delta.name, ""])
                case ToolCallArguments():
                    assert delta.index == len(self.calls) - 1
                    self.calls[-1][1] += delta.json_fragment


def ids_of(text: str) -> list[int]:
    """Ids of the plain tokenizer: tags are single tokens, as models write them."""
    return [int(i) for i in tokenizer_with().encode(text)]


def byte_ids(text: str) -> list[int]:
    """One id for every byte: no tag is a single token, characters are torn apart."""
    table = {tokenizer_with().token_bytes(i): i for i in range(256)}
    return [table[bytes([byte])] for byte in text.encode()]


def read(ids: Sequence[int], **options: Any) -> tuple[Joined, ReplyReader]:
    """What a reply of these ``ids`` joins to, and its reader; reading ends at a stop string."""
    reader = ReplyReader(tokenizer_with(), **{"opens_thought": False, **options})
    joined = Joined()
    for token_id in ids:
        joined.add(reader.push(token_id))
        if reader.stopped:
            break
    joined.add(reader.finish())
    return joined, reader


def xml_call(name: str, **values: str) -> str:
    """A call as the model writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
