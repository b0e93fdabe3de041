"""What the next prompt of a conversation is known to begin with, once its reply is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model.text.chat import RenderedPrompt
from model.text.messages import THINK
from server.events import WarmRequest
from server.turn.compose import ComposedTurn
from server.turn.reply import Reply
from server.turn.served import ChatRenderer


def warm_request(asked: ComposedTurn, reply: Reply, renderer: ChatRenderer) -> WarmRequest:
    """A request to prefill what follows ``reply`` whatever the user says next.

    Raises:
        InputError: the conversation with its reply cannot be rendered.
    """
    conversation = asked.conversation
    known = renderer.known_next(
        conversation.messages,
        as_sent_back(reply, conversation.messages),
        tools=conversation.tools,
        template_kwargs=conversation.template_kwargs,
    )
    return WarmRequest(
        id=f"{asked.generation.id}-next",
        slot=asked.generation.slot,
        prompt=RenderedPrompt(ids=known),
    )


def as_sent_back(reply: Reply, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that ``reply`` is in the next request: of a client whose newest message of the assistant
    came back without a thought, the next one will, too."""
    message = reply.message()
    newest = next((one for one in reversed(messages) if one.get("role") == "assistant"), None)
    if newest is not None and not _has_thought(newest):
        message.pop("reasoning_content", None)
    return message


def _has_thought(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    is_tagged = isinstance(content, str) and content.lstrip().startswith(THINK)
    return bool(message.get("reasoning_content") or message.get("reasoning")) or is_tagged


def is_worth_it(asked: ComposedTurn) -> bool:
    """Of several replies nobody knows which one is taken; a continued one is a message of two parts."""
    return asked.generation.n_replies == 1 and not asked.conversation.continues
