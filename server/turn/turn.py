"""A turn of a conversation: the form into which every dialect decodes its body.

Errors name the fields of a turn; a client sees the names that its dialect has for them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from model.errors import InputError
from model.text.grammar.calls import TextForm

ToolDefinition = Mapping[str, Any]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


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
