"""The bodies of ``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema

from server.http.schema import (
    MESSAGES,
    PARTS,
    STOPS,
    TOOLS,
    OnlyFalse,
    Schema,
    Several,
    Untouched,
    entry_error,
)
from server.openai.messages import Message, TextPart, Tool, ToolChoice


def _some(value: int) -> int:
    if value == 0:
        raise ValueError("input should be at least 1, or -1 for no limit")
    return value


def _check_biases(biases: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if len(biases) > MAX_BIASES:
        raise ValueError(f"at most {MAX_BIASES} tokens may have a bias")
    for name, value in biases.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 9):
            raise entry_error(name, "should be a token id")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise entry_error(name, "should be a number from -100 to 100")
    return biases


MAX_BIASES = 4096
Biases = Annotated[
    dict[str, JsonValue],
    AfterValidator(_check_biases),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_BIASES,
            "propertyNames": {"pattern": r"^\d{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]
Metadata = Annotated[dict[str, JsonValue], Field(max_length=64)]
StopString = Annotated[str, Field(max_length=4096)]
Stop = StopString | Annotated[Several[StopString], STOPS]
TokenLimit = Annotated[int, Field(ge=-1), AfterValidator(_some)]
"""A limit in tokens; -1 means none."""
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(Schema):
    """How much to think, in OpenRouter's form. Thoughts cannot be excluded from the reply."""

    effort: Effort | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    enabled: bool | None = None
    exclude: OnlyFalse | None = None
    summary: Untouched = None


class StreamOptions(Schema):
    """What a stream contains besides the reply: token counts at its end, or those so far in every chunk.
    Obfuscation is not supported."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
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


class Prediction(Schema):
    """Text that the reply is likely to contain, as a whole or in parts."""

    type: Literal["content"]
    content: str | Annotated[Several[TextPart], PARTS]

    @property
    def text(self) -> str:
        """The whole text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class SamplingFields(Schema):
    """The fields that chat and plain completions share. Null or absent fields take the model's defaults."""

    model: Annotated[str, Field(min_length=1)] | None = None
    max_tokens: TokenLimit | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Probability | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    logit_bias: Biases | None = None
    stop: Stop | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None


class ChatRequest(SamplingFields):
    """A chat completion request.

    Fields that have no effect here are accepted with any value (``store``, ``verbosity``). Other unsupported
    fields are accepted only with the value that asks for nothing (``modalities: ["text"]``).
    """

    messages: Annotated[Several[Message], Field(min_length=1), MESSAGES]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[Several[Tool], TOOLS] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    enable_thinking: bool | None = None
    return_progress: bool | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    modalities: Several[Literal["text"]] | None = None
    store: Untouched = None
    verbosity: Untouched = None
    prompt_cache_retention: Untouched = None
    prompt_cache_options: Untouched = None
    cache_prompt: Untouched = None
    skip_special_tokens: Literal[True] | None = None
    include_reasoning: Literal[True] | None = None
    separate_reasoning: Literal[True] | None = None


TokenId = Annotated[int, Field(ge=0, lt=2**32)]
TokenIds = Annotated[Several[TokenId], Field(min_length=1)]
MANY = Field(min_length=1, max_length=128)
Prompt = str | Annotated[Several[str], MANY] | TokenIds | Annotated[Several[TokenIds], MANY]


class CompletionRequest(SamplingFields):
    """A request to continue a text, or each of several.

    Control strings such as ``<|im_start|>`` are control tokens in a prompt, so that a client can write the
    template itself. ``echo``, ``suffix`` and a ``best_of`` above ``n`` are not supported.
    """

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: OnlyFalse | None = None
    suffix: None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
