"""The tools of a request as the model sees them, and the client's names for them.

Every tool is shown as a function. The name of a tool in a namespace begins with the namespace; a custom tool
has one string parameter, ``input``; a search by the client is the function ``tool_search``.
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
    """The client's name of a tool."""

    kind: Kind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A tool as the model sees it, and the field of the request that it came in."""

    path: str
    origin: Origin
    definition: dict[str, Any]
    form: TextForm | None = None

    @property
    def name(self) -> str:
        name: str = self.definition["function"]["name"]
        return name


def shown_name(name: str, namespace: str | None = None) -> str:
    """The name by which the model knows a tool."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"


@dataclass
class Toolbox:
    """All tools that the model may call.

    Attributes:
        definitions: as functions, in the order of the request.
        late: definitions that a message adds.
        origins: the client's names, by the shown names.
        forms: the form of the input of custom tools, by the shown names.
        names: the client's paths of the definitions, see :class:`server.turn.turn.Turn`.
    """

    definitions: list[dict[str, Any]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    forms: dict[str, TextForm] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, tools: Sequence[Tool], where: str, *, late: bool = False) -> None:
        """Add the tools at ``where``; a repeated definition is ignored.

        Args:
            late: whether a message defines them, and not the head of the prompt.

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
        """The client's name of the tool that the model knows as ``shown``."""
        return self.origins.get(shown) or Origin("function", shown)

    def choice(self, asked: AskedChoice | None, *, parallel: bool) -> ToolChoice:
        """``tool_choice`` in the turn's terms.

        Raises:
            InputError: it names an unknown tool.
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
        """The shown name; the namespace may be left out where the name is unambiguous."""
        shown = shown_name(tool.name, tool.namespace)
        if shown in self.origins:
            return shown
        alike = [name for name, origin in self.origins.items() if origin.name == tool.name]
        if tool.namespace is None and len(alike) == 1:
            return alike[0]
        raise InputError(
            f"'{where}.name' names '{tool.name}', which is not one of the tools.", param=f"{where}.name"
        )


def functions_of(tool: Tool, path: str = "") -> Iterator[Shown]:
    """The functions that ``tool`` is shown as; none for a hosted tool that is switched off."""
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
    """The form that the input of a custom tool must have, if the client gives one."""
    if isinstance(tool.format, GrammarInput):
        return TextForm(tool.format.syntax, tool.format.definition)
    return None


def _definition(**function: Any) -> dict[str, Any]:
    """A definition with its keys in the order that models are trained on, without absent ones."""
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
    }
