"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.auth import authenticate
from server.body import read_json_body
from server.chat_reply import ChatBody, ChatChunks
from server.chat_request import ComposedChat, compose_chat
from server.disconnect import run_until_disconnect
from server.gateway import Gateway, new_id
from server.openapi import takes
from server.run import Run
from server.schema import parse
from server.schema_chat import ChatRequest
from server.schema_replies import ChatCompletion, ChatCompletionChunk
from server.sse import EventStream


def router(gateway: Gateway) -> APIRouter:
    """The chat completions endpoint."""
    routes = APIRouter(tags=["chat"])
    settings = gateway.settings

    @routes.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        openapi_extra=takes(ChatRequest),
        responses={200: {"model": ChatCompletion, "content": {"text/event-stream": {}}}},
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
        if chat.stream:
            return EventStream(
                _chunks(chat, run, gateway), keep_alive_s=settings.keep_alive_s, stall_s=settings.stall_s
            )
        whole = await run_until_disconnect(_body(chat, run, gateway), request.receive)
        return Response(status_code=499) if whole is None else JSONResponse(whole)

    return routes


async def _chunks(
    chat: ComposedChat, run: Run, gateway: Gateway
) -> AsyncGenerator[ChatCompletionChunk, None]:
    collector, encoder = ChatBody(chat.shape), ChatChunks(chat.shape)
    async with aclosing(run.events([chat.generation])) as events:
        async for event in events:
            collector.add(event)
            for chunk in encoder.of(event):
                yield chunk
    gateway.read_ahead(chat, collector.message(0))


async def _body(chat: ComposedChat, run: Run, gateway: Gateway) -> ChatCompletion:
    collector = ChatBody(chat.shape)
    async with aclosing(run.events([chat.generation])) as events:
        async for event in events:
            collector.add(event)
    gateway.read_ahead(chat, collector.message(0))
    return collector.body()
