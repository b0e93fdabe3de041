"""A turn of a conversation, into which every dialect decodes its body, and the form of the reply that it asks
for: which tools may be called, which grammar the reply must match, and how the prompt says so.

Errors name the fields of a turn; a client sees the names that its dialect has for them.

A model that is held to a schema without seeing it learns of a field only when it has to fill it, and fills it
with whatever comes to mind. So a note after the last message shows the schema. In that place it leaves the
conversation before it unchanged, and only the last reply is prefilled again because of it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Unpack

from model.errors import InputError
from model.text.grammar.calls import CallOptions, TextForm
from model.text.schemas.checking import checked_schema

ToolDefinition = Mapping[str, Any]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

MAX_STRING_CHARS = 32_768
"""The longest string in JSON if neither its schema nor the reply has a limit: a model that gets lost in a
string would write to the end of the context."""

TELLING = frozenset(
    {"properties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}
)
"""A schema without any of these keywords says no more than a type."""

MAX_SCHEMA_CHARS = 32_768
"""Longer schemas are not shown: they would make up most of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Which tools the model may call.

    Attributes:
        mode: ``none`` hides the tools, because a model that sees tools calls them; ``required`` demands at
            least one call.
        names: the only tools that may be called; None for all.
        parallel: whether more than one call may be made.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """The JSON that the reply's content must be, unless the reply consists of calls.

    Attributes:
        schema: a JSON schema.
        strict: whether the request fails if a part of the schema cannot be enforced.
    """

    schema: Mapping[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Whether and how long the model thinks; None leaves it to the server and the model.

    Attributes:
        enabled: overrides the server's default.
        effort: how hard to think; ``none`` is the same as ``enabled=False``.
        budget: the most tokens of a thought.
    """

    enabled: bool | None = None
    effort: Effort | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters; None stands for the model's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A client's request, whatever its dialect.

    Errors name these attributes (``messages[2].content``, ``tools[0]``, ``response_format``); ``names``
    translates them.

    Attributes:
        id: unique; identifies the request in the reply, in the log and in the engine.
        messages: the conversation, in the form that ``model/text/messages.py`` takes.
        tenant: the owner of the memory that may be used; None if the server has no API keys.
        session: the client's name for the conversation, which gets its own slot; None for the default slot.
        model: the requested model; None for the one that is served.
        tools: definitions, ``{"type": "function", "function": {...}}``, rendered into the prompt unchanged.
        late_tools: definitions that earlier messages contain: they may be called, and are not rendered again.
        forms: by the names of tools that take free text, what it must look like; such a tool has the single
            parameter of :func:`model.text.grammar.calls.text_tool`.
        stop: strings that end the reply; empty ones are ignored.
        n: the number of replies.
        top_logprobs: how many alternatives to report per token (0 to 20); None for no log probabilities.
        max_tokens: the longest reply; None for what the context leaves.
        min_tokens: the fewest tokens before the reply may end by itself.
        ignore_eos: whether the reply ends at ``max_tokens`` only.
        prediction: text that the reply is likely to contain, which can make decoding faster.
        tells_prefill: whether the client is shown the progress of a long prefill.
        continues: whether the reply continues the last message; None does so if that is the assistant's.
        chat_template_kwargs: variables of the chat template.
        user: the end user that the client names, for the log.
        names: the dialect's names of attributes and their parts, by their path here; the longest path wins.
    """

    id: str
    messages: Sequence[Mapping[str, Any]]
    tenant: str | None = None
    session: str | None = None
    model: str | None = None
    tools: Sequence[ToolDefinition] = ()
    late_tools: Sequence[ToolDefinition] = ()
    forms: Mapping[str, TextForm] = field(default_factory=dict)
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat | None = None
    thinking: Thinking = Thinking()
    sampling: Sampling = Sampling()
    stop: Sequence[str] = ()
    n: int = 1
    top_logprobs: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    prediction: str | None = None
    tells_prefill: bool = False
    continues: bool | None = None
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    user: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def named_as(names: Mapping[str, str]) -> Generator[None, None, None]:
    """Rename the fields that errors raised inside name, by ``names``."""
    try:
        yield
    except InputError as error:
        if not names or error.param is None:
            raise
        raise renamed(error, names) from error


def renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """``error`` with its field renamed, in its message too."""
    param = error.param or ""
    known = [path for path in names if param == path or param.startswith((f"{path}.", f"{path}["))]
    if not known:
        return error
    path = max(known, key=len)
    told = names[path] + param.removeprefix(path)
    return InputError(error.message.replace(param, told), param=told, code=error.code)


# -- tools and the form of the reply -----------------------------------------------------------------


class GrammarWriter(Protocol):
    """Compiles schemas to grammars; implemented by :class:`model.text.grammar.compiler.GrammarCompiler`."""

    def json(
        self, schema: Mapping[str, Any], *, is_strict: bool = False, max_string_chars: int | None = None
    ) -> str:
        """The grammar of JSON. Raises InputError, naming the keyword, for what cannot be enforced."""
        ...

    def calls(self, tools: Sequence[Mapping[str, Any]], **options: Unpack[CallOptions]) -> str:
        """The grammar of calls of ``tools``. Raises InputError as :meth:`json` does."""
        ...


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a turn's tools are used.

    Attributes:
        tools: definitions in the prompt; None for none.
        callable: those that may be called; their calls are parsed from the reply.
        must_call: whether the reply must consist of calls.
        is_free: whether the model may call any tool, or none, without constraints.
    """

    tools: list[dict[str, Any]] | None = None
    callable: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    is_free: bool = True


def tool_use_of(turn: Turn) -> ToolUse:
    """How ``turn`` uses its tools, by its ``tools`` and its ``tool_choice``.

    Raises:
        InputError: it chooses a tool that does not exist.
    """
    choice = turn.tool_choice
    by_name = _by_name(turn)
    if choice.mode == "none":
        return ToolUse()
    callable_tools = _callable(choice, by_name)
    must_call = choice.mode == "required"
    if must_call and not callable_tools:
        raise InputError("'tool_choice' asks for a call, but there are no tools.", param="tool_choice")
    is_all = len(callable_tools) == len(by_name)
    is_loose = choice.parallel and not any(_is_bound(tool, turn) for tool in callable_tools)
    shown = [dict(tool) for tool in turn.tools]
    return ToolUse(shown or None, tuple(callable_tools), must_call, is_all and is_loose and not must_call)


def has_form(turn: Turn, use: ToolUse) -> bool:
    """Whether the reply must match a grammar after its thought."""
    return turn.response_format is not None or not (use.is_free or not use.callable)


def grammar_of(turn: Turn, use: ToolUse, grammars: GrammarWriter) -> str | None:
    """The grammar that the reply must match after its thought; None for no constraint.

    Raises:
        InputError: a schema cannot be enforced although it must be.
    """
    if not has_form(turn, use):
        return None
    wanted = turn.response_format
    answer = None if wanted is None or use.must_call else wanted.schema
    is_strict = wanted is not None and bool(wanted.strict)
    max_string_chars = MAX_STRING_CHARS if turn.max_tokens is None else None
    if not use.callable and answer is not None:
        return grammars.json(answer, is_strict=is_strict, max_string_chars=max_string_chars)
    return grammars.calls(
        use.callable,
        parallel=turn.tool_choice.parallel,
        text_before=not use.must_call and answer is None,
        answer=answer,
        answer_is_strict=is_strict,
        max_string_chars=max_string_chars,
        forms=turn.forms,
        places=[_place(turn, tool) for tool in use.callable],
    )


def schema_note(wanted: ResponseFormat | None, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The note for an answer of the form ``wanted``; None if there is nothing to say, or if ``messages``
    already contain it."""
    if wanted is None or not TELLING & set(wanted.schema):
        return None
    schema = json.dumps(wanted.schema, ensure_ascii=False)
    told = _bare(schema)
    if len(told) > MAX_SCHEMA_CHARS or any(told in _bare(text) for text in _texts(messages)):
        return None
    purpose = f" ({wanted.description})" if wanted.description else ""
    return f"Answer with JSON{purpose} that fits this JSON schema, and with nothing else:\n{schema}"


def _by_name(turn: Turn) -> Mapping[str, dict[str, Any]]:
    """All tools, those at the head of the prompt first."""
    by_name: dict[str, dict[str, Any]] = {}
    for kind in ("tools", "late_tools"):
        for i, tool in enumerate(getattr(turn, kind)):
            name, parameters = tool["function"]["name"], tool["function"].get("parameters")
            if parameters is not None:
                checked_schema(parameters, f"{kind}[{i}].function.parameters")
            if name in by_name:
                raise InputError(f"Two tools are named '{name}'.", param=f"{kind}[{i}].function.name")
            by_name[name] = dict(tool)
    return by_name


def _callable(choice: ToolChoice, by_name: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that may be called."""
    if choice.names is None:
        return list(by_name.values())
    for i, name in enumerate(choice.names):
        if name not in by_name:
            where = f"tool_choice.names[{i}]"
            raise InputError(f"'{where}' names '{name}', which is not one of the tools.", param=where)
    return [by_name[name] for name in dict.fromkeys(choice.names)]


def _is_bound(tool: Mapping[str, Any], turn: Turn) -> bool:
    """Whether the arguments of ``tool`` are constrained, too."""
    return bool(tool["function"].get("strict")) or tool["function"]["name"] in turn.forms


def _place(turn: Turn, tool: Mapping[str, Any]) -> str:
    """Where in the turn ``tool`` is defined."""
    name = tool["function"]["name"]
    for kind in ("tools", "late_tools"):
        definitions: Sequence[Mapping[str, Any]] = getattr(turn, kind)
        for i, definition in enumerate(definitions):
            if definition["function"]["name"] == name:
                return f"{kind}[{i}]"
    raise AssertionError(f"{name} is none of the turn's tools")


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, Sequence):
            yield "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _bare(text: str) -> str:
    """``text`` without white space, so that the indentation of JSON does not matter."""
    return "".join(text.split())
