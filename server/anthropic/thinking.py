"""Whether and how hard the model thinks, and what a client wants to see of it."""

from __future__ import annotations

from collections.abc import Sequence

from server.anthropic.schema.messages import AssistantMessage, Effort, Message, SystemMessage, UserMessage
from server.anthropic.schema.requests import (
    AdaptiveThinking,
    BetweenToolsThinking,
    DisabledThinking,
    EnabledThinking,
    PromptFields,
)
from server.turn.turn import Thinking


def thinking_of(request: PromptFields, default: bool | None) -> Thinking:
    """Read ``thinking`` and the effort. A client that says nothing of thinking expects no thought before the
    text: the model thinks there only where the server's ``default`` says so."""
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
    """Whether thoughts are sent; else only their signatures are."""
    thinking = request.thinking
    return not (isinstance(thinking, EnabledThinking | AdaptiveThinking) and thinking.display == "omitted")


def _effort(request: PromptFields) -> Effort | None:
    """The newest word on it: a system message's that belongs to this turn, or the request's."""
    for message in reversed(request.messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, SystemMessage) and message.output_config and message.output_config.effort:
            return message.output_config.effort
    return request.output_config.effort if request.output_config else None


def _answers_tools(messages: Sequence[Message]) -> bool:
    """Whether the reply comes after tools' results and not after a person's words."""
    said = next((message for message in reversed(messages) if not isinstance(message, SystemMessage)), None)
    return isinstance(said, UserMessage) and any(
        not isinstance(block, str) and block.type == "tool_result" for block in said.content
    )
