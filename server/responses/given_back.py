"""The request's fields, as every body of its response returns them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from model.sampling import SamplingParams
from server.responses.schema.requests import ResponsesRequest
from server.responses.schema.tools import FunctionTool, NamespaceTool, Tool


def given_back(
    request: ResponsesRequest, *, response_id: str, created: int, model: str, sampling: SamplingParams
) -> dict[str, Any]:
    """The fields of a response besides its output.

    Args:
        sampling: the request's sampling fields, completed by the defaults.
    """
    reasoning, text = request.reasoning, request.text
    wanted = None if text is None else text.format
    verbosity = {} if text is None or text.verbosity is None else {"verbosity": text.verbosity}
    summary = None if reasoning is None else reasoning.told_summary
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "background": False,
        "frequency_penalty": sampling.frequency_penalty,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": {name: _as_text(value) for name, value in (request.metadata or {}).items()},
        "model": model,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": sampling.presence_penalty,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": summary},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"} if wanted is None else as_sent(wanted), **verbosity},
        "tool_choice": _choice(request),
        "tools": [tool_given_back(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": request.user,
    }


def as_sent(part: BaseModel) -> dict[str, Any]:
    """A part of a request, with the keys that its client sent."""
    return part.model_dump(by_alias=True, exclude_unset=True)


def _choice(request: ResponsesRequest) -> Any:
    choice = request.tool_choice
    return as_sent(choice) if isinstance(choice, BaseModel) else choice or "auto"


def tool_given_back(tool: Tool) -> dict[str, Any]:
    """``tool`` as OpenAI returns it: a function has all its optional keys, and a namespace its
    description."""
    given = as_sent(tool)
    match tool:
        case FunctionTool():
            given |= {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
        case NamespaceTool():
            given["description"] = tool.description or ""
    return given


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
