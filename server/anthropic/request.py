"""Decodes a Messages request into a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping

from model.errors import InputError
from server.anthropic.schema.requests import PromptFields
from server.anthropic.schema.tools import AnyChoice, AutoChoice, NamedChoice, NoChoice
from server.anthropic.session import session_of
from server.anthropic.thinking import thinking_of
from server.anthropic.toolbox import Toolbox
from server.anthropic.transcript import Transcript
from server.turn.turn import ResponseFormat, Sampling, ToolChoice, Turn

NAMES: Mapping[str, str] = {
    "stop": "stop_sequences",
    "tool_choice.names": "tool_choice.name",
    "tool_choice.names[0]": "tool_choice.name",
    "tool_choice": "tool_choice",
    "chat_template_kwargs": "thinking",
}
"""What a turn's attributes are called here."""
MARK = re.compile(rb'"cache_control"\s*:\s*\{')
"""Inside a string its quotes would be escaped."""


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
        InputError: it refers to a tool that is not there.
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
    """Whether the client asks for its prompt to be cached; only the usage that it is told depends on it."""
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
