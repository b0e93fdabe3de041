"""Anthropic's Messages dialect: the routes at ``/v1/messages`` and below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response

from server.anthropic import models
from server.anthropic.errors import ErrorBody, error_body, speaks
from server.anthropic.reply import MessageEncoder, MessageShape
from server.anthropic.request import marks_cache, shows_thoughts, turn_of
from server.anthropic.schema.replies import CountBody, MessageBody
from server.anthropic.schema.requests import CountTokensRequest, MessagesRequest
from server.http.dialect import Dialect, takes
from server.http.gateway import Gateway
from server.http.intake import Arrival, arrives
from server.http.schema import parse
from server.settings import Settings
from server.turn.compose import ComposedTurn, compose, count_tokens
from server.turn.served import Served

MessageArrival = Annotated[Arrival, arrives("msg_")]
STREAMED = """Events of the types `message_start`, `content_block_start`, `content_block_delta`,
`content_block_stop`, `message_delta`, `message_stop`, with `ping` at any time; an `error` event when it
fails midway."""


def router(gateway: Gateway) -> APIRouter:
    """The messages endpoints."""
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody} for status in (400, 401, 404, 413, 415, 500, 503)
    }
    routes = APIRouter(tags=["messages"], responses=refusals)

    @routes.post(
        "/v1/messages",
        summary="Answer a conversation, in Anthropic's dialect",
        openapi_extra=takes(MessagesRequest),
        responses={200: {"model": MessageBody, "content": {"text/event-stream": {"schema": _events()}}}},
    )
    async def create_message(request: Request, arrival: MessageArrival) -> Response:
        run = gateway.new_run(arrival.id)
        asked = await gateway.on_worker(_compose, arrival, gateway.served, gateway.settings)
        return await gateway.answer(
            request,
            run,
            asked.turn,
            MessageEncoder(asked.shape),
            stream=asked.stream,
            headers={"request-id": arrival.id},
        )

    @routes.post(
        "/v1/messages/count_tokens",
        summary="Count the tokens of a conversation",
        openapi_extra=takes(CountTokensRequest),
    )
    async def count_message_tokens(arrival: MessageArrival) -> CountBody:
        return await gateway.on_worker(_count, arrival, gateway.served, gateway.settings)

    @routes.get("/api/hello", include_in_schema=False)
    @routes.head("/api/hello", include_in_schema=False)
    async def hello() -> Response:
        """Claude Code checks this path before it sends anything else."""
        return Response()

    return routes


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, ready to run."""

    turn: ComposedTurn
    shape: MessageShape
    stream: bool


def _compose(arrival: Arrival, served: Served, settings: Settings) -> _Asked:
    request = parse(MessagesRequest, arrival.body)
    turn = turn_of(
        request,
        id=arrival.id,
        tenant=arrival.tenant,
        headers=arrival.headers,
        thinks=settings.thinking,
    )
    composed = compose(turn, served, settings)
    points = composed.generation.prompt.shared_points
    shape = MessageShape(
        id=arrival.id,
        model=served.name,
        shows_thoughts=shows_thoughts(request),
        stored_end=points[-1] if points and marks_cache(arrival.body) else 0,
        is_clamped=composed.generation.max_tokens < request.max_tokens,
    )
    return _Asked(composed, shape, bool(request.stream))


def _count(arrival: Arrival, served: Served, settings: Settings) -> CountBody:
    request = parse(CountTokensRequest, arrival.body)
    turn = turn_of(
        request, id=arrival.id, tenant=arrival.tenant, headers=arrival.headers, thinks=settings.thinking
    )
    return CountBody(input_tokens=count_tokens(turn, served, settings))


def _events() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "One server-sent event.",
        "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": STREAMED}},
        "required": ["event", "data"],
    }


ANTHROPIC = Dialect(
    routers=(router,),
    contested=(models.router,),
    bodies=(MessagesRequest, CountTokensRequest),
    speaks=speaks,
    error_body=error_body,
)
