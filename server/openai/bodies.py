"""The bodies of responses. ``crossturn`` and the reasoning fields are extensions of this server."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from server.turn.reply import PlanBody

Finish = Literal["stop", "length", "tool_calls"]


class PromptDetails(TypedDict):
    """Of the prompt's tokens, those that were reused."""

    cached_tokens: int


class CompletionDetails(TypedDict):
    """Of the reply's tokens, those of thoughts and those that were drafted; and the drafted tokens that were
    rejected, which are not part of the reply."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(TypedDict):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: NotRequired[CompletionDetails]


class TopLogprob(TypedDict):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """The token that was sampled, and the most likely ones at its position."""

    top_logprobs: list[TopLogprob]


class Logprobs(TypedDict):
    """Log probabilities of the content's tokens."""

    content: list[ContentLogprob]
    refusal: None


class FunctionBody(TypedDict):
    """A call's name and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallBody(TypedDict):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: FunctionBody


class ReplyMessage(TypedDict):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallBody]]


class ChatChoice(TypedDict):
    """One of the replies."""

    index: int
    message: ReplyMessage
    logprobs: Logprobs | None
    finish_reason: Finish


class ChatCompletion(TypedDict):
    """A whole reply."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    crossturn: PlanBody
    service_tier: NotRequired[Literal["default"]]
    metadata: NotRequired[dict[str, str]]


class FunctionDelta(TypedDict):
    """The name, once, and more of the arguments."""

    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """More of a call; ``id``, ``type`` and the name come with its first delta."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ReplyDelta(TypedDict, total=False):
    """An addition to a message."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    reasoning: str
    tool_calls: list[ToolCallDelta]


class ChunkChoice(TypedDict):
    """An addition to one of the replies."""

    index: int
    delta: ReplyDelta
    logprobs: Logprobs | None
    finish_reason: Finish | None


class PromptProgress(TypedDict):
    """The progress of prefill in tokens: the whole prompt, the reused part, and the part processed so far."""

    total: int
    cache: int
    processed: int
    time_ms: int


class ChatCompletionChunk(TypedDict):
    """A chunk of a streamed reply."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]
    crossturn: NotRequired[PlanBody]
    prompt_progress: NotRequired[PromptProgress]
    service_tier: NotRequired[Literal["default"]]


class CompletionLogprobs(TypedDict):
    """Log probabilities of a text's tokens; offsets are in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One of the texts, or an addition to it; only a complete one has a finish reason."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(TypedDict):
    """The continuations of the prompts, or a chunk of one; each of several prompts has its own plan."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    crossturn: NotRequired[PlanBody | list[PlanBody]]
