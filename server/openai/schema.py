"""The bodies of ``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from server.http.schema import OnlyFalse, Schema
from server.openai.messages import Message, Tool, ToolChoice

Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=16),
]
Stop = str | Annotated[list[str], Field(max_length=4)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(Schema):
    """What a stream carries besides the reply. There is no obfuscation to include."""

    include_usage: bool | None = None
    include_obfuscation: OnlyFalse | None = None


class TextFormat(Schema):
    """Plain text, the default."""

    type: Literal["text"]


class JsonObjectFormat(Schema):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Schema):
    """A JSON schema that the content must match."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Schema):
    """JSON of a given schema; enforced whether or not ``strict`` is set."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat,
    Field(discriminator="type"),
]


class SamplingFields(Schema):
    """The fields that chat and plain completions share. Null and absent take the model's defaults."""

    model: Annotated[str, Field(min_length=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Probability | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Bias] | None = None
    stop: Stop | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None


class ChatRequest(SamplingFields):
    """A chat completion request.

    Fields of OpenAI's that this server has no use for are taken at the value that asks for nothing
    (``store: false``, ``modalities: ["text"]``), and refused at every other.
    """

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    safety_identifier: Annotated[str, Field(max_length=64)] | None = None
    store: OnlyFalse | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None


TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
MANY = Field(min_length=1, max_length=128)
Prompt = str | Annotated[list[str], MANY] | TokenIds | Annotated[list[TokenIds], MANY]


class CompletionRequest(SamplingFields):
    """A request to go on from a text, or from each of several.

    In text, control strings such as ``<|im_start|>`` are control tokens: whoever sends a bare prompt
    writes the template too. There is no echo, no suffix, and no choosing among more replies than asked for.
    """

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: OnlyFalse | None = None
    suffix: None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
