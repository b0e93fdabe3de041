"""Calls as output items: of a function, of a custom tool, and of a search for tools."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator

from model.text.grammar.calls import INPUT
from server.responses.output_items import ItemStatus, OutputItem, Place
from server.responses.schema.replies import EventBody, ItemBody
from server.responses.toolbox import Origin

_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"\\u[dD][89abAB][0-9a-fA-F]{2}(?=\\?$|\\u[dD]?$|\\u[dD][c-fC-F][0-9a-fA-F]?$)"
"""The first half of a pair of escapes that make one character, if its second half may still follow."""
_ESCAPE = re.compile(rf"{_PAIR}|(?!{_HALF})\\(?:u[0-9a-fA-F]{{4}}|[^u])")


class CustomInput:
    """The input of a custom tool, decoded from the fragments of ``{"input": "..."}`` as they come.

    Attributes:
        text: the input so far.
    """

    def __init__(self) -> None:
        self.text = ""
        self._whole = ""
        self._rest = ""
        self._state = "head"

    def push(self, fragment: str) -> str:
        """Add a fragment of the arguments; the text that it adds."""
        self._whole += fragment
        self._rest += fragment
        if self._state == "head":
            self._read_head()
        if self._state != "string":
            return ""
        return self._add(self._read_string())

    def finish(self) -> str:
        """End the arguments; the text that this adds: arguments of another form, as JSON."""
        if self._state != "head":
            return ""
        try:
            arguments = json.loads(self._whole)
        except ValueError:
            return self._add(self._whole if self._whole.strip() != "{" else "")
        value = arguments.get(INPUT, "") if isinstance(arguments, dict) else arguments
        return self._add(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    def _read_head(self) -> None:
        head = _HEAD.match(self._rest)
        if head is not None:
            self._rest = self._rest[head.end() :]
            self._state = "string"

    def _read_string(self) -> str:
        """Take complete characters off the rest, up to the end of the string or an incomplete escape."""
        n = 0
        while n < len(self._rest) and self._rest[n] != '"':
            if self._rest[n] != "\\":
                n += 1
                continue
            escape = _ESCAPE.match(self._rest, n)
            if escape is None:
                break
            n = escape.end()
        taken, self._rest = self._rest[:n], self._rest[n:]
        if self._rest.startswith('"'):
            self._state = "done"
        text: str = json.loads(f'"{taken}"', strict=False)
        return text

    def _add(self, text: str) -> str:
        self.text += text
        return text


class Call(OutputItem):
    """A call of a tool.

    Args:
        call_id: the id that its result will name.
        origin: the client's name of the tool.
    """

    prefix = "fc"

    def __init__(self, place: Place, call_id: str, origin: Origin) -> None:
        super().__init__(self.prefix, place)
        self._call_id = call_id
        self._origin = origin
        self._fragments: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._fragments)

    def grow(self, fragment: str) -> Iterator[EventBody]:
        """Add a fragment of the arguments' JSON."""
        self._fragments.append(fragment)
        yield from self._grown(fragment)

    @abstractmethod
    def _grown(self, fragment: str) -> Iterator[EventBody]: ...

    def _named(self) -> dict[str, str]:
        named = {"call_id": self._call_id, "name": self._origin.name}
        return named if self._origin.namespace is None else {**named, "namespace": self._origin.namespace}


class FunctionCall(Call):
    """A call of a function."""

    def body(self, status: ItemStatus) -> ItemBody:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            **self._named(),
            "arguments": self.arguments,
        }

    def _grown(self, fragment: str) -> Iterator[EventBody]:
        yield self._event("response.function_call_arguments.delta", delta=fragment)

    def close(self, status: ItemStatus) -> Iterator[EventBody]:
        yield self._event("response.function_call_arguments.done", arguments=self.arguments)
        yield from super().close(status)


class CustomCall(Call):
    """A call of a custom tool, whose input is the text of its one argument."""

    prefix = "ctc"

    def __init__(self, place: Place, call_id: str, origin: Origin) -> None:
        super().__init__(place, call_id, origin)
        self._input = CustomInput()

    def body(self, status: ItemStatus) -> ItemBody:
        return {
            "id": self.id,
            "type": "custom_tool_call",
            "status": status,
            **self._named(),
            "input": self._input.text,
        }

    def _grown(self, fragment: str) -> Iterator[EventBody]:
        yield from self._told(self._input.push(fragment))

    def close(self, status: ItemStatus) -> Iterator[EventBody]:
        yield from self._told(self._input.finish())
        yield self._event("response.custom_tool_call_input.done", input=self._input.text)
        yield from super().close(status)

    def _told(self, text: str) -> Iterator[EventBody]:
        if text:
            yield self._event("response.custom_tool_call_input.delta", delta=text)


class ToolSearchCall(Call):
    """A search for tools by the client; it has no events of its own."""

    prefix = "tsc"

    def body(self, status: ItemStatus) -> ItemBody:
        return {
            "id": self.id,
            "type": "tool_search_call",
            "status": status,
            "call_id": self._call_id,
            "execution": "client",
            "arguments": self._read(),
        }

    def _grown(self, fragment: str) -> Iterator[EventBody]:  # noqa: ARG002 - it is told whole
        yield from ()

    def _read(self) -> object:
        try:
            return json.loads(self.arguments)
        except ValueError:
            return {}


def call_of(place: Place, call_id: str, origin: Origin) -> Call:
    """The item of a call of the tool ``origin``."""
    match origin.kind:
        case "custom":
            return CustomCall(place, call_id, origin)
        case "tool_search":
            return ToolSearchCall(place, call_id, origin)
        case "function":
            return FunctionCall(place, call_id, origin)
