"""The messages of a request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from server.anthropic.schema.blocks import AssistantBlock, TextBlock, UserBlock
from server.anthropic.schema.tools import ToolAdditionBlock, ToolRemovalBlock
from server.http.schema import Schema

Effort = Literal["low", "medium", "high", "xhigh", "max"]
SystemBlock = Annotated[TextBlock | ToolAdditionBlock | ToolRemovalBlock, Field(discriminator="type")]


class TurnOutputConfig(Schema):
    """How hard the model works at the turn that a system message belongs to."""

    effort: Effort | None = None


class SystemMessage(Schema):
    """Instructions in the course of a conversation.

    ``clear_at: "next_user_message"`` shows them until a user's message follows.
    """

    role: Literal["system"]
    content: str | list[SystemBlock] = ""
    output_config: TurnOutputConfig | None = None
    clear_at: Literal["next_user_message", "never"] | None = None


class UserMessage(Schema):
    """What a person said, and what tools returned."""

    role: Literal["user"]
    content: str | list[UserBlock]


class AssistantMessage(Schema):
    """What the model said."""

    role: Literal["assistant"]
    content: str | list[AssistantBlock]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]
