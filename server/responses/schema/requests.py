"""The bodies of ``POST /v1/responses`` and of ``POST /v1/responses/input_tokens``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from server.http.schema import MESSAGES, STOPS, TOOLS, OnlyFalse, Schema, Several
from server.responses.schema.items import InputItem
from server.responses.schema.tools import Tool, ToolChoice
from server.turn.turn import Effort

Metadata = dict[str, JsonValue]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
SummaryLength = Literal["auto", "concise", "detailed", "none"]


class PlainText(Schema):
    """Any text, the default."""

    type: Literal["text"]


class JsonObject(Schema):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Schema):
    """JSON of a given schema."""

    type: Literal["json_schema"]
    name: str
    schema_: dict[str, JsonValue] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


Format = Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")]


class Text(Schema):
    """The form of the answer. ``verbosity`` changes nothing: the family has no word for it."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Schema):
    """How hard the model thinks, and in what form its thoughts are told.

    ``context`` says whether earlier turns' thoughts stay in the prompt, for templates that can keep them.
    """

    effort: Effort | None = None
    summary: SummaryLength | None = None
    generate_summary: SummaryLength | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None

    @property
    def told_summary(self) -> str | None:
        """The summary that is wanted; None for none."""
        summary = self.summary or self.generate_summary
        return None if summary == "none" else summary


class StreamOptions(Schema):
    """What a stream carries besides the reply. There is no obfuscation to include."""

    include_obfuscation: OnlyFalse | None = None


class PromptFields(Schema):
    """What the prompt is made of: the fields that both endpoints take.

    ``conversation``, ``prompt`` and ``truncation: "auto"`` are refused; ``personality`` changes nothing.
    """

    model: Annotated[str, Field(min_length=1)] | None = None
    input: str | Annotated[Several[InputItem], MESSAGES] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[Several[Tool], TOOLS] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    truncation: Literal["disabled"] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    conversation: None = None
    prompt: None = None


class ResponsesRequest(PromptFields):
    """A request for a response. Null and absent are the same.

    Sent by ordinary clients and taken without effect: ``client_metadata``, ``include`` beyond encrypted
    reasoning and log probabilities, ``max_tool_calls`` (of hosted tools), ``prompt_cache_options``,
    ``prompt_cache_retention``, ``safety_identifier`` and ``user`` (the log names them), ``service_tier``,
    ``text.verbosity``.
    """

    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Probability | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Bias] | None = None
    stop: str | Annotated[Several[str], STOPS] | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    include: list[str] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: str | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    client_metadata: JsonValue = None
    max_tool_calls: int | None = None
    prompt_cache_options: JsonValue = None
    prompt_cache_retention: str | None = None
    background: OnlyFalse | None = None
    background_options: None = None
    context_management: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    moderation: None = None
    access_programs: None = None
    image: None = None


class InputTokensRequest(PromptFields):
    """A request to count a prompt's tokens."""

    personality: str | None = None
