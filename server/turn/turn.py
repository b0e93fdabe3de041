"""A turn of a conversation, as every dialect's body is decoded into it.

Errors are raised in a turn's own words; a client reads them in those of its dialect.
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
        mode: ``none`` does not even show the tools: a model that sees tools calls them; ``required`` asks
            for at least one call.
        names: the only tools that may be called; None for all of them.
        parallel: more than one call may be made.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """The JSON that the reply's content must be, unless the reply is calls.

    Attributes:
        schema: a JSON schema.
        strict: whether the client insists that all of the schema is enforced.
    """

    schema: Mapping[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Whether and how long the model thinks; None leaves it to the server and the model.

    Attributes:
        enabled: beats the server's default.
        effort: how hard; ``none`` is the same as ``enabled=False``.
        budget: thought tokens at most.
    """

    enabled: bool | None = None
    effort: Effort | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are picked; None takes the model's own default."""

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
    """What a client asks for, whatever dialect it speaks.

    Errors name these attributes (``messages[2].content``, ``tools[0]``, ``response_format``); ``names``
    translates them.

    Attributes:
        id: unique; what the reply, the log and the engine call the request.
        messages: the conversation, in the form that ``model/text/messages.py`` takes.
        tenant: whose memory may be used; None where the server knows no API keys.
        session: the client's name for the conversation, which gets a slot of its own; None for the default
            slot.
        model: the model that is asked for; None for the one that is there.
        tools: definitions, ``{"type": "function", "function": {...}}``, written into the prompt as they are.
        late_tools: definitions that messages have told of: they may be called, and are not written again.
        forms: what the free text of the tools of these names must look like; such a tool has the one
            parameter that :func:`model.text.grammar.calls.text_tool` gives it.
        stop: strings that end the reply; empty ones stop nothing.
        n: replies wanted.
        top_logprobs: None for no log probabilities, else how many alternatives (0 to 20) for each token.
        max_tokens: of the reply; None for what the context leaves.
        min_tokens: before so many the reply does not end by itself.
        ignore_eos: the reply ends at ``max_tokens`` alone.
        prediction: text that the reply may turn out to be, in whole or in parts: it may come faster for that.
        tells_prefill: how far a long prompt is read is told.
        continues: whether the reply goes on writing the last message; None goes on exactly where that is the
            assistant's.
        chat_template_kwargs: switches of the template's own.
        user: the end user that the client names, for the log.
        names: what the dialect calls attributes and their parts, by their path here; the longest path counts.
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
    """Errors that are raised inside name their field as ``names`` has it."""
    try:
        yield
    except InputError as error:
        if not names or error.param is None:
            raise
        raise renamed(error, names) from error


def renamed(error: InputError, names: Mapping[str, str]) -> InputError:
    """``error`` with its field renamed, in its sentence too."""
    param = error.param or ""
    known = [path for path in names if param == path or param.startswith((f"{path}.", f"{path}["))]
    if not known:
        return error
    path = max(known, key=len)
    told = names[path] + param.removeprefix(path)
    return InputError(error.message.replace(param, told), param=told, code=error.code)
