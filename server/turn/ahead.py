"""What the next prompt of a conversation is known to begin with, once its reply is written."""

from __future__ import annotations

from model.text.chat import RenderedPrompt
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
        reply.message(),
        tools=conversation.tools,
        template_kwargs=conversation.template_kwargs,
    )
    return WarmRequest(
        id=f"{asked.generation.id}-next",
        slot=asked.generation.slot,
        prompt=RenderedPrompt(ids=known),
    )


def is_worth_it(asked: ComposedTurn) -> bool:
    """Of several replies nobody knows which one is taken; a continued one is a message of two parts."""
    return asked.generation.n_replies == 1 and not asked.conversation.continues
