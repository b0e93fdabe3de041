"""The tools of a request as the model sees them, and what a call of one of them is called for its client.

Every tool is shown as a function. One of a namespace carries the namespace in its name; a custom tool has the
one string parameter :data:`INPUT`; a search that the client does is the function ``tool_search``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from model.errors import InputError
from server.responses.tool_schema import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    GrammarInput,
    NamedTool,
    NamespaceTool,
    Tool,
    ToolSearchTool,
)
from server.responses.tool_schema import ToolChoice as AskedChoice
from server.turn.turn import ToolChoice

INPUT = "input"
TOOL_SEARCH = "tool_search"
_SEARCH_PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
}

Kind = Literal["function", "custom", "tool_search"]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a client calls a tool."""

    kind: Kind
    name: str
    namespace: str | None = None


def shown_name(name: str, namespace: str | None = None) -> str:
    """The name that the model knows a tool by."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"


@dataclass
class Toolbox:
    """All tools that the model may call.

    Attributes:
        definitions: as functions, in the order in which they came.
        late: those that a message tells of.
        origins: what the client calls them, by their shown names.
        names: what the client calls the places in ``definitions``, see :class:`server.turn.turn.Turn`.
    """

    definitions: list[dict[str, Any]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, tools: Sequence[Tool], where: str, *, late: bool = False) -> None:
        """Take in tools that stand at ``where``; of one that is there already, the first stays.

        Args:
            late: a message tells of them, the head of the prompt does not.

        Raises:
            InputError: two different tools have the same name.
        """
        for i, tool in enumerate(tools):
            for path, origin, definition in functions_of(tool, f"{where}[{i}]"):
                self._add_one(path, origin, definition, late)

    def _add_one(self, path: str, origin: Origin, definition: dict[str, Any], late: bool) -> None:
        shown = definition["function"]["name"]
        if shown in self.origins:
            if definition in (*self.definitions, *self.late) and self.origins[shown] == origin:
                return
            raise InputError(f"Two tools are named '{shown}'.", param=f"{path}.name")
        field, group = ("late_tools", self.late) if late else ("tools", self.definitions)
        self.names[f"{field}[{len(group)}]"] = path
        self.names[f"{field}[{len(group)}].function"] = path
        group.append(definition)
        self.origins[shown] = origin

    def origin(self, shown: str) -> Origin:
        """What the client calls the tool that the model calls ``shown``."""
        return self.origins.get(shown) or Origin("function", shown)

    def choice(self, asked: AskedChoice | None, *, parallel: bool) -> ToolChoice:
        """``tool_choice`` in the turn's terms.

        Raises:
            InputError: it names a tool that is not there.
        """
        match asked:
            case NamedTool():
                return ToolChoice(
                    mode="required", names=(self._chosen(asked, "tool_choice"),), parallel=False
                )
            case AllowedTools():
                named = enumerate(asked.tools)
                names = tuple(self._chosen(tool, f"tool_choice.tools[{i}]") for i, tool in named)
                return ToolChoice(mode=asked.mode, names=names, parallel=parallel)
            case None:
                return ToolChoice(parallel=parallel)
            case _:
                return ToolChoice(mode=asked, parallel=parallel)

    def _chosen(self, tool: NamedTool, where: str) -> str:
        """The shown name; a tool of a namespace may be named without it where no other has its name."""
        shown = shown_name(tool.name, tool.namespace)
        if shown in self.origins:
            return shown
        alike = [name for name, origin in self.origins.items() if origin.name == tool.name]
        if tool.namespace is None and len(alike) == 1:
            return alike[0]
        raise InputError(
            f"'{where}.name' names '{tool.name}', which is none of the tools.", param=f"{where}.name"
        )


def functions_of(tool: Tool, path: str) -> Iterator[tuple[str, Origin, dict[str, Any]]]:
    """The functions that ``tool`` is shown as; a hosted one that is only said to be off is none."""
    match tool:
        case FunctionTool():
            yield path, Origin("function", tool.name), _function(tool)
        case CustomTool():
            yield path, Origin("custom", tool.name), _custom(tool)
        case NamespaceTool():
            for i, inner in enumerate(tool.tools):
                kind: Kind = "custom" if isinstance(inner, CustomTool) else "function"
                definition = (
                    _custom(inner, tool.name)
                    if isinstance(inner, CustomTool)
                    else _function(inner, tool.name)
                )
                yield f"{path}.tools[{i}]", Origin(kind, inner.name, tool.name), definition
        case ToolSearchTool():
            yield path, Origin("tool_search", TOOL_SEARCH), _search(tool)


def _function(tool: FunctionTool, namespace: str | None = None) -> dict[str, Any]:
    return _definition(
        name=shown_name(tool.name, namespace),
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )


def _custom(tool: CustomTool, namespace: str | None = None) -> dict[str, Any]:
    if isinstance(tool.format, GrammarInput):
        raise InputError(
            f"The grammar of the tool '{tool.name}' cannot be enforced yet.",
            param="tools",
            code="invalid_value",
        )
    text: Mapping[str, Any] = {"type": "string"}
    return _definition(
        name=shown_name(tool.name, namespace),
        description=tool.description,
        parameters={"type": "object", "properties": {INPUT: text}, "required": [INPUT]},
    )


def _search(tool: ToolSearchTool) -> dict[str, Any]:
    return _definition(
        name=TOOL_SEARCH, description=tool.description, parameters=tool.parameters or _SEARCH_PARAMETERS
    )


def _definition(**function: Any) -> dict[str, Any]:
    """A definition with its keys in the order that models are trained on; absent ones are left out."""
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
    }
