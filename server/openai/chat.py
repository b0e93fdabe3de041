"""``POST /v1/chat/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from server.http.answer import Answer
from server.http.arrival import receive
from server.http.gateway import Gateway
from server.http.openapi import errors, streams, takes
from server.openai.chat_reply import ChatEncoder
from server.openai.chat_request import compose_chat
from server.openai.chat_schema import ChatRequest
from server.openai.reply_schema import ChatCompletion, ChatCompletionChunk


def router(gateway: Gateway) -> APIRouter:
    """The chat completions endpoint."""
    routes = APIRouter(tags=["chat"], responses=errors(400, 401, 404, 413, 415, 500, 503))
    settings = gateway.settings

    @routes.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        openapi_extra=takes(ChatRequest),
        responses=streams(ChatCompletion, ChatCompletionChunk),
    )
    async def create_chat_completion(request: Request) -> Response:
        arrival = await receive(request, settings, prefix="chatcmpl")
        run = gateway.new_run(arrival.id)
        chat = await gateway.on_worker(compose_chat, arrival, gateway.served, settings)
        run.record.describe(who=chat.who, thinking=chat.generation.prompt.opens_thought)
        encoder = ChatEncoder(chat.shape)

        def on_delivered() -> None:
            # Nobody knows what a client makes of a reply that was cut short.
            if encoder.is_whole:
                gateway.read_ahead(chat, encoder.message(0))

        answer = Answer(
            run=run,
            generations=[chat.generation],
            encoder=encoder,
            on_delivered=on_delivered,
        )
        return await answer.send(request, settings, stream=chat.stream)

    return routes
