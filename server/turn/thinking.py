"""What a turn's thinking means for the template and for the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from server.turn.turn import Thinking

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
class ThinkingPlan:
    """What is done about thoughts.

    Attributes:
        template_kwargs: what the chat template is told.
        max_tokens: close the thought after so many tokens; None for no limit.
    """

    template_kwargs: Mapping[str, object]
    max_tokens: int | None = None


def plan_thinking(thinking: Thinking, default: bool | None, variables: Collection[str]) -> ThinkingPlan:
    """Put ``thinking`` over the server's ``default``. ``variables`` are the template's switches."""
    enabled = thinking.enabled
    if enabled is None and thinking.effort is not None:
        enabled = thinking.effort != "none"
    if enabled is None:
        enabled = default
    kwargs: dict[str, object] = {} if enabled is None else {"enable_thinking": enabled}
    budget = thinking.budget
    effort = thinking.effort or "none"
    if "reasoning_effort" in variables:
        if effort in TEMPLATE_EFFORTS:
            kwargs["reasoning_effort"] = TEMPLATE_EFFORTS[effort]
    elif budget is None:
        budget = EFFORT_BUDGETS.get(effort)
    return ThinkingPlan(kwargs, budget)
