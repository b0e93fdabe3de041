"""The bodies of ``POST /v1/messages`` and ``POST /v1/messages/count_tokens``, and the messages in them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from server.anthropic.schema.blocks import AssistantBlock, CacheMark, TextBlock, UserBlock
from server.anthropic.schema.tools import Tool, ToolAdditionBlock, ToolChoice, ToolRemovalBlock
from server.http.schema import MESSAGES, PARTS, STOPS, TOOLS, Schema, Several

Effort = Literal["low", "medium", "high", "xhigh", "max"]
SystemBlock = Annotated[TextBlock | ToolAdditionBlock | ToolRemovalBlock, Field(discriminator="type")]


class TurnOutputConfig(Schema):
    """The effort in the turn that a system message belongs to."""

    effort: Effort | None = None


class SystemMessage(Schema):
    """Instructions within a conversation.

    ``clear_at: "next_user_message"`` shows them until a user's message follows.
    """

    role: Literal["system"]
    content: str | Annotated[Several[SystemBlock], PARTS] = ""
    output_config: TurnOutputConfig | None = None
    clear_at: Literal["next_user_message", "never"] | None = None


class UserMessage(Schema):
    """A message of the user, and results of tools."""

    role: Literal["user"]
    content: str | Annotated[Several[UserBlock], PARTS]


class AssistantMessage(Schema):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: str | Annotated[Several[AssistantBlock], PARTS]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]


Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Display = Literal["summarized", "omitted", "updates"]


class EnabledThinking(Schema):
    """Think, with at most ``budget_tokens``."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1024)] | None = None
    display: Display | None = None


class AdaptiveThinking(Schema):
    """Think as hard as ``output_config.effort`` says."""

    type: Literal["adaptive"]
    display: Display | None = None


class DisabledThinking(Schema):
    """Do not think."""

    type: Literal["disabled"]


class BetweenToolsThinking(Schema):
    """Think about results of tools, and not before."""

    type: Literal["between_tools"]


Thinking = Annotated[
    EnabledThinking | AdaptiveThinking | DisabledThinking | BetweenToolsThinking, Field(discriminator="type")
]


class JsonSchemaFormat(Schema):
    """JSON that matches a schema, which is enforced."""

    type: Literal["json_schema"]
    schema_: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(Schema):
    """The effort, and the format of the answer."""

    effort: Effort | None = None
    format: JsonSchemaFormat | None = None


class Metadata(Schema):
    """The end user. Clients may write their session into ``user_id``."""

    user_id: str | None = None


class ClearThinking(Schema):
    """Which thoughts stay in the prompt. It has no effect: the model's template decides."""

    type: Literal["clear_thinking_20251015"]
    keep: JsonValue = None


class ContextManagement(Schema):
    """Edits of the conversation. Those that remove results of tools are not supported."""

    edits: list[ClearThinking] | None = None


class PromptFields(Schema):
    """The fields that both endpoints read."""

    model: Annotated[str, Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    messages: Annotated[Several[Message], Field(min_length=1), MESSAGES]
    system: str | Annotated[Several[TextBlock], PARTS] | None = None
    tools: Annotated[Several[Tool], TOOLS] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonSchemaFormat | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    stop_sequences: Annotated[Several[str], STOPS] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    cache_control: CacheMark | None = None
    context_management: ContextManagement | None = None
    safeguards: list[JsonValue] | None = None
    diagnostics: dict[str, JsonValue] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    speed: Literal["standard"] | None = None


class MessagesRequest(PromptFields):
    """A request for the assistant's next message.

    Fields that are of use only to Anthropic's own service are accepted without effect: ``cache_control``,
    ``context_management.edits`` of thoughts, ``safeguards``, ``diagnostics``, ``service_tier``,
    ``inference_geo``, ``speed`` at its default.
    """

    max_tokens: Annotated[int, Field(ge=1)]


class CountTokensRequest(PromptFields):
    """A request for the number of tokens in its prompt; a limit of the reply is not required."""
