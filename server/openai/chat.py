"""``POST /v1/chat/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

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

    @routes.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        openapi_extra=takes(ChatRequest),
        responses=streams(ChatCompletion, ChatCompletionChunk),
    )
    async def create_chat_completion(request: Request) -> Response:
        arrival = await receive(request, gateway.settings, prefix="chatcmpl")
        run = gateway.new_run(arrival.id)
        chat = await gateway.on_worker(compose_chat, arrival, gateway.served, gateway.settings)
        return await gateway.answer(request, run, chat.turn, ChatEncoder(chat.shape), stream=chat.stream)

    return routes
