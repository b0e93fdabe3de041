"""What the next prompt of a conversation is known to begin with, once its reply is written."""

from __future__ import annotations

from model.text.chat import RenderedPrompt
from server.events import WarmRequest
from server.http.served import ChatRenderer
from server.openai.chat_request import ComposedChat
from server.openai.reply_schema import ReplyMessage


def warm_request(chat: ComposedChat, reply: ReplyMessage, renderer: ChatRenderer) -> WarmRequest:
    """A request to read what follows ``reply`` whatever the user says next.

    Raises:
        InputError: the conversation with its reply cannot be rendered.
    """
    asked = chat.conversation
    known = renderer.known_next(
        asked.messages, reply, tools=asked.tools, template_kwargs=asked.template_kwargs
    )
    return WarmRequest(
        id=f"{chat.generation.id}-next",
        slot=chat.generation.slot,
        tenant=chat.generation.tenant,
        prompt=RenderedPrompt(ids=known),
    )


def is_worth_it(chat: ComposedChat) -> bool:
    """Of several replies nobody knows which one is taken; a continued one is a message of two parts."""
    return chat.generation.n_replies == 1 and not chat.conversation.continues
