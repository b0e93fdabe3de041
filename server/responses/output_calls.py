"""Calls in the making: of a function, of a custom tool, and of a search for tools."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator

from server.responses.custom_input import CustomInput
from server.responses.output_items import ItemStatus, OutputItem, Place
from server.responses.schema.replies import EventBody, ItemBody
from server.responses.toolbox import Origin


class Call(OutputItem):
    """A call of a tool.

    Args:
        call_id: what its result will name.
        origin: what the client calls the tool.
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
        """More of the arguments' JSON."""
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
    """A call of a custom tool: its text is what its one argument says."""

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
    """A search for tools that the client is asked for; it has no events of its own."""

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
    """The item of a call of the tool that ``origin`` names."""
    match origin.kind:
        case "custom":
            return CustomCall(place, call_id, origin)
        case "tool_search":
            return ToolSearchCall(place, call_id, origin)
        case "function":
            return FunctionCall(place, call_id, origin)
