"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field, JsonValue
from typing_extensions import TypedDict

from model.errors import InputError
from server.http.dialect import errors, takes
from server.http.gateway import Gateway
from server.http.intake import JsonBody, authenticate
from server.http.schema import MESSAGES, TOOLS, Schema, Several, parse
from server.openai.messages import Message, Tool
from server.turn.served import Served


class TokenizeRequest(Schema):
    """A text, or a conversation to be rendered. Control strings in a text are control tokens."""

    model: Annotated[str, Field(min_length=1)] | None = None
    prompt: str | None = None
    messages: Annotated[Several[Message], Field(min_length=1), MESSAGES] | None = None
    tools: Annotated[Several[Tool], TOOLS] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None


class DetokenizeRequest(Schema):
    """Token ids."""

    model: Annotated[str, Field(min_length=1)] | None = None
    tokens: Several[Annotated[int, Field(ge=0)]]


class TokensBody(TypedDict):
    """Token ids, their number, and the limit of the context."""

    tokens: list[int]
    count: int
    max_model_len: int


class TextBody(TypedDict):
    """The text of token ids."""

    prompt: str


N_CONTEXTS = 4
"""A text that is only counted may be this many times as long as the context."""


def router(gateway: Gateway) -> APIRouter:
    """The endpoints that only need the tokenizer."""
    routes = APIRouter(
        tags=["tokens"], responses=errors(400, 401, 404, 413, 415), dependencies=[Depends(authenticate)]
    )
    served = gateway.served

    @routes.post(
        "/tokenize", summary="The tokens of a text or a conversation", openapi_extra=takes(TokenizeRequest)
    )
    async def tokenize(body: JsonBody) -> TokensBody:
        return await gateway.on_worker(lambda: _tokens(parse(TokenizeRequest, body), served))

    @routes.post("/detokenize", summary="The text of tokens", openapi_extra=takes(DetokenizeRequest))
    async def detokenize(body: JsonBody) -> TextBody:
        return await gateway.on_worker(lambda: _text(parse(DetokenizeRequest, body), served))

    return routes


def _tokens(request: TokenizeRequest, served: Served) -> TokensBody:
    served.check_name(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise InputError("Send either 'prompt' or 'messages'.", param="prompt")
    if request.messages is None:
        if request.tools or request.chat_template_kwargs:
            raise InputError("'tools' and 'chat_template_kwargs' belong to 'messages'.", param="messages")
        ids = served.encode(request.prompt or "", param="prompt", n_contexts=N_CONTEXTS)
    else:
        ids = served.chat.render(
            [message.model_dump(exclude_none=True) for message in request.messages],
            tools=[tool.model_dump(exclude_none=True) for tool in request.tools or ()] or None,
            template_kwargs=request.chat_template_kwargs or {},
            max_tokens=N_CONTEXTS * served.info.context_length,
        ).ids
    return TokensBody(tokens=ids.tolist(), count=len(ids), max_model_len=served.info.context_length)


def _text(request: DetokenizeRequest, served: Served) -> TextBody:
    served.check_name(request.model)
    beyond = [token for token in request.tokens if token >= served.info.vocab_size]
    if beyond:
        raise InputError(
            f"'tokens' holds {beyond[0]}; the vocabulary ends at {served.info.vocab_size - 1}.",
            param="tokens",
            code="invalid_value",
        )
    return TextBody(prompt=served.tokens.decode(request.tokens))
