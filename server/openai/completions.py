"""``POST /v1/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from server.http.answer import Answer
from server.http.arrival import receive
from server.http.gateway import Gateway
from server.http.openapi import errors, streams, takes
from server.openai.completion_reply import CompletionEncoder
from server.openai.completion_request import compose_completion
from server.openai.completion_schema import CompletionRequest
from server.openai.reply_schema import Completion


def router(gateway: Gateway) -> APIRouter:
    """The plain completions endpoint."""
    routes = APIRouter(tags=["completions"], responses=errors(400, 401, 404, 413, 415, 500, 503))
    settings = gateway.settings

    @routes.post(
        "/v1/completions",
        summary="Go on from a text",
        openapi_extra=takes(CompletionRequest),
        responses=streams(Completion, Completion),
    )
    async def create_completion(request: Request) -> Response:
        arrival = await receive(request, settings, prefix="cmpl")
        run = gateway.new_run(arrival.id)
        completion = await gateway.on_worker(compose_completion, arrival, gateway.served)
        run.record.describe(who=completion.who, thinking=None)
        answer = Answer(
            run=run, generations=completion.generations, encoder=CompletionEncoder(completion.shape)
        )
        return await answer.send(request, settings, stream=completion.stream)

    return routes
