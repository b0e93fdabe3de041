"""The tools of a request, of which its messages add some and remove others.

A tool with ``defer_loading`` is not defined at the head of the prompt, where a change would invalidate the
whole conversation: its definition is written where a message refers to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from model.errors import InputError
from server.anthropic.schema.tools import Tool, ToolDefinition, ToolName

Definition = dict[str, Any]


class Toolbox:
    """The tools that may be called, message by message.

    Args:
        tools: of the request.

    Attributes:
        shown: definitions for the head of the prompt.
        indices: the index of each of them in the request.
        late: definitions that messages have added.

    Raises:
        InputError: two tools have the same name.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._known: dict[str, Definition] = {}
        for i, tool in enumerate(tools):
            self._define(tool, f"tools[{i}].name")
        self.indices = [i for i, tool in enumerate(tools) if not tool.defer_loading]
        self.shown = [self._known[tools[i].name] for i in self.indices]
        self.late: list[Definition] = []
        self._written = {tools[i].name for i in self.indices}
        self._withdrawn: set[str] = set()

    @property
    def callable_names(self) -> tuple[str, ...] | None:
        """The names of the tools that may be called; None for all that were shown."""
        if not self._withdrawn:
            return None
        names = (tool["function"]["name"] for tool in (*self.shown, *self.late))
        return tuple(name for name in names if name not in self._withdrawn)

    def bring_in(self, tools: Iterable[tuple[ToolName | ToolDefinition, str]]) -> str:
        """The text that introduces ``tools`` to the model; each comes with its path in the request.

        Raises:
            InputError: one is unknown, or is defined twice.
        """
        written: list[str] = []
        again: list[str] = []
        for tool, where in tools:
            name = tool.name if isinstance(tool, ToolName) else tool.definition.name
            if isinstance(tool, ToolDefinition):
                self._define(tool.definition, f"{where}.definition.name")
            definition = self._find(name, where)
            self._withdrawn.discard(name)
            if name in self._written:
                again.append(name)
                continue
            self._written.add(name)
            self.late.append(definition)
            written.append(json.dumps(definition, ensure_ascii=False))
        parts = ["You can call these tools from here on:\n<tools>\n" + "\n".join(written) + "\n</tools>"]
        told = [f"You can call {', '.join(again)} from here on."] if again else []
        return "\n".join([*(parts if written else []), *told])

    def withdraw(self, tool: ToolName, where: str) -> str:
        """The text that tells the model that it can no longer call ``tool``.

        Raises:
            InputError: the tool is unknown.
        """
        self._find(tool.name, where)
        self._withdrawn.add(tool.name)
        return f"You can no longer call {tool.name}."

    def _define(self, tool: Tool, where: str) -> None:
        if tool.name in self._known:
            raise InputError(f"Two tools are named '{tool.name}'.", param=where)
        self._known[tool.name] = _definition(tool)

    def _find(self, name: str, where: str) -> Definition:
        if name not in self._known:
            raise InputError(f"'{where}' names '{name}', which is not one of the tools.", param=where)
        return self._known[name]


def _definition(tool: Tool) -> Definition:
    """``tool`` in the form that templates take, with its keys in the order that models are trained on.
    ``$schema`` is of no use to the model."""
    function: Definition = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = {key: value for key, value in tool.input_schema.items() if key != "$schema"}
    if tool.strict:
        function["strict"] = True
    if tool.input_examples:
        function["examples"] = tool.input_examples
    return {"type": "function", "function": function}
