"""The content blocks of messages, as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from server.http.schema import PARTS, Schema, Several


class CacheMark(Schema):
    """A client's cache hint, which has no effect: every message start is a boundary."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class TextBlock(Schema):
    """A piece of text; the pieces of a message are joined without a separator."""

    type: Literal["text"]
    text: str
    cache_control: CacheMark | None = None
    citations: list[JsonValue] | None = None


class Base64Source(Schema):
    """The bytes of an image."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(Schema):
    """The URL of an image."""

    type: Literal["url"]
    url: str


class ImageBlock(Schema):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]
    cache_control: CacheMark | None = None


class ToolReferenceBlock(Schema):
    """A result of a search for tools: a tool of the request that may be called from here on."""

    type: Literal["tool_reference"]
    tool_name: str
    cache_control: CacheMark | None = None


ResultBlock = Annotated[TextBlock | ImageBlock | ToolReferenceBlock, Field(discriminator="type")]


class ToolResultBlock(Schema):
    """The result of a tool; an empty result is absent, null or the empty string."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[Several[ResultBlock], PARTS] | None = None
    is_error: bool | None = None
    cache_control: CacheMark | None = None


class ToolUseBlock(Schema):
    """A tool call that the assistant made. Anthropic's own client echoes ``caller``."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue]
    cache_control: CacheMark | None = None
    caller: dict[str, JsonValue] | None = None


class ThinkingBlock(Schema):
    """A thought of the assistant. If its text was not shown, ``signature`` holds it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Schema):
    """A thought that only the server that wrote it can read."""

    type: Literal["redacted_thinking"]
    data: str


UserBlock = Annotated[TextBlock | ImageBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]
