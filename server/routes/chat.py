"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from server.answer import Answer
from server.auth import authenticate
from server.body import read_json_body
from server.chat_reply import ChatEncoder
from server.chat_request import ComposedChat, compose_chat
from server.gateway import Gateway, new_id
from server.openapi import errors, streams, takes
from server.schema import parse
from server.schema_chat import ChatRequest
from server.schema_replies import ChatCompletion, ChatCompletionChunk


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
        tenant = authenticate(request.headers, settings.api_keys)
        body = await read_json_body(request, limit=settings.max_body_bytes)
        request_id = new_id("chatcmpl")
        run = gateway.new_run(request_id)

        def compose() -> ComposedChat:
            return compose_chat(
                parse(ChatRequest, body),
                request_id=request_id,
                created=int(time.time()),
                served=gateway.served,
                settings=settings,
                headers=request.headers,
                tenant=tenant,
                emit=run.emitter(),
            )

        chat = await gateway.on_worker(compose)
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
