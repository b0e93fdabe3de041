"""The tools of a request as the model sees them, and what a call of one of them is called for its client.

Every tool is shown as a function. One of a namespace carries the namespace in its name; a custom tool has one
string parameter, ``input``; a search that the client does is the function ``tool_search``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from model.errors import InputError
from model.text.grammar.calls import TextForm, text_tool
from server.responses.schema.tools import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    GrammarInput,
    NamedTool,
    NamespaceTool,
    Tool,
    ToolSearchTool,
)
from server.responses.schema.tools import ToolChoice as AskedChoice
from server.turn.turn import ToolChoice

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


@dataclass(frozen=True, slots=True)
class Shown:
    """A tool as the model sees it, and the field of the request that brought it."""

    path: str
    origin: Origin
    definition: dict[str, Any]
    form: TextForm | None = None

    @property
    def name(self) -> str:
        name: str = self.definition["function"]["name"]
        return name


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
        forms: what the text of custom tools must look like, by their shown names.
        names: what the client calls the places in ``definitions``, see :class:`server.turn.turn.Turn`.
    """

    definitions: list[dict[str, Any]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    forms: dict[str, TextForm] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, tools: Sequence[Tool], where: str, *, late: bool = False) -> None:
        """Take in tools that stand at ``where``; of one that is there already, the first stays.

        Args:
            late: a message tells of them, the head of the prompt does not.

        Raises:
            InputError: two different tools have the same name.
        """
        for i, tool in enumerate(tools):
            for function in functions_of(tool, f"{where}[{i}]"):
                self._add_one(function, late)

    def _add_one(self, function: Shown, late: bool) -> None:
        name, path = function.name, function.path
        if name in self.origins:
            if (
                function.definition in (*self.definitions, *self.late)
                and self.origins[name] == function.origin
            ):
                return
            raise InputError(f"Two tools are named '{name}'.", param=f"{path}.name")
        field, group = ("late_tools", self.late) if late else ("tools", self.definitions)
        self.names[f"{field}[{len(group)}]"] = path
        self.names[f"{field}[{len(group)}].function"] = path
        group.append(function.definition)
        self.origins[name] = function.origin
        if function.form is not None:
            self.forms[name] = function.form

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


def functions_of(tool: Tool, path: str = "") -> Iterator[Shown]:
    """The functions that ``tool`` is shown as; a hosted one that is only said to be off is none."""
    match tool:
        case FunctionTool() | CustomTool():
            yield _shown(tool, path)
        case NamespaceTool():
            for i, inner in enumerate(tool.tools):
                yield _shown(inner, f"{path}.tools[{i}]", tool.name)
        case ToolSearchTool():
            definition = _definition(
                name=TOOL_SEARCH,
                description=tool.description,
                parameters=tool.parameters or _SEARCH_PARAMETERS,
            )
            yield Shown(path, Origin("tool_search", TOOL_SEARCH), definition)


def _shown(tool: FunctionTool | CustomTool, path: str, namespace: str | None = None) -> Shown:
    name = shown_name(tool.name, namespace)
    if isinstance(tool, CustomTool):
        form = _form(tool)
        return Shown(
            path, Origin("custom", tool.name, namespace), text_tool(name, tool.description, form), form
        )
    definition = _definition(
        name=name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Shown(path, Origin("function", tool.name, namespace), definition)


def _form(tool: CustomTool) -> TextForm | None:
    """What the text of a custom tool must look like, where its client says so."""
    if isinstance(tool.format, GrammarInput):
        return TextForm(tool.format.syntax, tool.format.definition)
    return None


def _definition(**function: Any) -> dict[str, Any]:
    """A definition with its keys in the order that models are trained on; absent ones are left out."""
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
    }
