"""Decodes a Messages request into a turn, with its session and its thinking."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from model.errors import InputError
from server.anthropic.schema.requests import (
    AdaptiveThinking,
    AssistantMessage,
    BetweenToolsThinking,
    DisabledThinking,
    Effort,
    EnabledThinking,
    Message,
    PromptFields,
    SystemMessage,
    UserMessage,
)
from server.anthropic.schema.tools import AnyChoice, AutoChoice, NamedChoice, NoChoice
from server.anthropic.toolbox import Toolbox
from server.anthropic.transcript import Transcript
from server.turn.turn import ResponseFormat, Sampling, Thinking, ToolChoice, Turn

NAMES: Mapping[str, str] = {
    "stop": "stop_sequences",
    "tool_choice.names": "tool_choice.name",
    "tool_choice.names[0]": "tool_choice.name",
    "tool_choice": "tool_choice",
    "chat_template_kwargs": "thinking",
}
"""This dialect's parameters for the attributes of a turn."""
MARK = re.compile(rb'"cache_control"\s*:\s*\{')
"""It cannot match inside a string, where its quotes are escaped."""
OLD_FORM = "_session_"
"""Claude Code once wrote ``user_..._account_..._session_<uuid>``."""


def turn_of(
    request: PromptFields,
    *,
    id: str,  # noqa: A002 - the turn's own word
    tenant: str | None,
    headers: Mapping[str, str],
    thinks: bool | None,
) -> Turn:
    """``request`` as a turn.

    Args:
        thinks: the server's default.

    Raises:
        InputError: it refers to an unknown tool.
    """
    toolbox = Toolbox(request.tools or ())
    transcript = Transcript(toolbox)
    transcript.read(request.system, request.messages)
    user_id = request.metadata.user_id if request.metadata else None
    wanted = request.output_format or (request.output_config.format if request.output_config else None)
    return Turn(
        id=id,
        tenant=tenant,
        session=session_of(headers, user_id),
        model=request.model,
        messages=transcript.messages,
        tools=toolbox.shown,
        late_tools=toolbox.late,
        tool_choice=_choice(request, toolbox),
        response_format=ResponseFormat(schema=wanted.schema_, strict=True) if wanted else None,
        thinking=thinking_of(request, thinks),
        sampling=Sampling(temperature=request.temperature, top_p=request.top_p, top_k=request.top_k),
        stop=request.stop_sequences or (),
        max_tokens=request.max_tokens,
        names={**NAMES, **_format_names(request), **_tool_names(toolbox), **transcript.names},
    )


def marks_cache(body: bytes) -> bool:
    """Whether the client asks for its prompt to be cached; only the reported usage depends on it."""
    return MARK.search(body) is not None


def _choice(request: PromptFields, toolbox: Toolbox) -> ToolChoice:
    choice = request.tool_choice
    names = toolbox.callable_names
    match choice:
        case None:
            return ToolChoice(names=names)
        case NoChoice():
            return ToolChoice(mode="none")
        case AutoChoice():
            return ToolChoice(names=names, parallel=not choice.disable_parallel_tool_use)
        case AnyChoice():
            return ToolChoice(mode="required", names=names, parallel=not choice.disable_parallel_tool_use)
        case NamedChoice():
            if names is not None and choice.name not in names:
                raise InputError(
                    f"'tool_choice.name' is '{choice.name}', which may not be called.",
                    param="tool_choice.name",
                )
            return ToolChoice(mode="required", names=(choice.name,), parallel=False)


def _format_names(request: PromptFields) -> dict[str, str]:
    told = "output_format.schema" if request.output_format else "output_config.format.schema"
    return {"response_format": told, "response_format.schema": told}


def _tool_names(toolbox: Toolbox) -> dict[str, str]:
    names: dict[str, str] = {}
    for shown, asked in enumerate(toolbox.indices):
        names[f"tools[{shown}]"] = names[f"tools[{shown}].function"] = f"tools[{asked}]"
        names[f"tools[{shown}].function.parameters"] = f"tools[{asked}].input_schema"
    return names


def session_of(headers: Mapping[str, str], user_id: str | None) -> str | None:
    """The session's name: the first of ``X-Claude-Code-Session-Id``, the session in ``metadata.user_id`` and
    ``X-Session-Id`` that is not empty."""
    candidates = (
        headers.get("x-claude-code-session-id"),
        _session_in(user_id or ""),
        headers.get("x-session-id"),
    )
    return next((session for session in candidates if session), None)


def _session_in(user_id: str) -> str | None:
    if OLD_FORM in user_id and not user_id.startswith("{"):
        return user_id.rpartition(OLD_FORM)[2]
    try:
        told = json.loads(user_id)
    except (ValueError, RecursionError):
        return None
    session = told.get("session_id") if isinstance(told, dict) else None
    return session if isinstance(session, str) else None


def thinking_of(request: PromptFields, default: bool | None) -> Thinking:
    """Read ``thinking`` and the effort. A client that does not mention thinking expects none: the model then
    thinks only if the server's ``default`` says so."""
    effort = _effort(request)
    match request.thinking:
        case None:
            return Thinking(enabled=bool(default), effort=effort if default else None)
        case DisabledThinking():
            return Thinking(enabled=False)
        case BetweenToolsThinking():
            thinks = _answers_tools(request.messages)
            return Thinking(enabled=thinks, effort=effort if thinks else None)
        case EnabledThinking(budget_tokens=budget):
            return Thinking(enabled=True, effort=effort, budget=budget)
        case AdaptiveThinking():
            return Thinking(enabled=True, effort=effort)


def shows_thoughts(request: PromptFields) -> bool:
    """Whether thoughts are sent, and not only their signatures."""
    thinking = request.thinking
    return not (isinstance(thinking, EnabledThinking | AdaptiveThinking) and thinking.display == "omitted")


def _effort(request: PromptFields) -> Effort | None:
    """The effort of a system message in this turn, if there is one, or else that of the request."""
    for message in reversed(request.messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, SystemMessage) and message.output_config and message.output_config.effort:
            return message.output_config.effort
    return request.output_config.effort if request.output_config else None


def _answers_tools(messages: Sequence[Message]) -> bool:
    """Whether the reply follows tool results and not a message of the user."""
    said = next((message for message in reversed(messages) if not isinstance(message, SystemMessage)), None)
    return isinstance(said, UserMessage) and any(
        not isinstance(block, str) and block.type == "tool_result" for block in said.content
    )
