"""Whether and how long the model thinks, from the several ways in which clients say it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from model.errors import InputError
from server.openai.chat_schema import ChatRequest

EFFORT_BUDGETS: Mapping[str, int] = {"minimal": 256, "low": 1024, "medium": 4096}
"""Thought tokens for each effort, where the template has no words for it; higher ones are unlimited."""

TEMPLATE_EFFORTS: Mapping[str, str] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "xhigh": "xhigh",
    "max": "xhigh",
}
"""The words of templates that know efforts (Qwen3.8's). ``high`` is how they think when told nothing."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request makes of thoughts.

    Attributes:
        template_kwargs: what the chat template is told.
        max_tokens: close the thought after so many tokens; None for no limit.
    """

    template_kwargs: Mapping[str, object]
    max_tokens: int | None = None


def thinking_of(request: ChatRequest, default: bool | None, variables: Collection[str]) -> Thinking:
    """Read ``enable_thinking``, ``chat_template_kwargs.enable_thinking`` and ``reasoning_effort``.

    The request beats the server's ``default``. ``variables`` are the switches that the template has.

    Raises:
        InputError: the spellings contradict each other.
    """
    enabled = _enabled(request)
    if enabled is None:
        enabled = default
    kwargs: dict[str, object] = {} if enabled is None else {"enable_thinking": enabled}
    budget = request.thinking_budget
    effort = request.reasoning_effort or "none"
    if "reasoning_effort" in variables:
        if effort in TEMPLATE_EFFORTS:
            kwargs["reasoning_effort"] = TEMPLATE_EFFORTS[effort]
    elif budget is None:
        budget = EFFORT_BUDGETS.get(effort)
    return Thinking(kwargs, budget)


def _enabled(request: ChatRequest) -> bool | None:
    """Whether the request switches thoughts on or off; None when it says nothing."""
    effort = request.reasoning_effort
    spellings = {
        "enable_thinking": request.enable_thinking,
        "chat_template_kwargs.enable_thinking": _from_kwargs(request),
        "reasoning_effort": None if effort is None else effort != "none",
    }
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(set(given.values())) > 1:
        raise InputError(
            f"These contradict each other: {', '.join(given)}.", param=list(given)[-1], code="invalid_value"
        )
    return next(iter(given.values()), None)


def _from_kwargs(request: ChatRequest) -> bool | None:
    value = (request.chat_template_kwargs or {}).get("enable_thinking")
    if value is None or isinstance(value, bool):
        return value
    raise InputError(
        "'chat_template_kwargs.enable_thinking' must be true or false.",
        param="chat_template_kwargs.enable_thinking",
        code="invalid_type",
    )
