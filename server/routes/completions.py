"""``POST /v1/completions``."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from server.answer import Answer
from server.auth import authenticate
from server.body import read_json_body
from server.completion_reply import CompletionEncoder
from server.completion_request import ComposedCompletion, compose_completion
from server.gateway import Gateway, new_id
from server.openapi import errors, streams, takes
from server.schema import parse
from server.schema_completions import CompletionRequest
from server.schema_replies import Completion


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
        tenant = authenticate(request.headers, settings.api_keys)
        body = await read_json_body(request, limit=settings.max_body_bytes)
        request_id = new_id("cmpl")
        run = gateway.new_run(request_id)

        def compose() -> ComposedCompletion:
            return compose_completion(
                parse(CompletionRequest, body),
                request_id=request_id,
                created=int(time.time()),
                served=gateway.served,
                headers=request.headers,
                tenant=tenant,
                emitter=run.emitter,
            )

        completion = await gateway.on_worker(compose)
        run.record.describe(who=completion.who, thinking=None)
        answer = Answer(run, completion.generations, CompletionEncoder(completion.shape))
        return await answer.send(request, settings, stream=completion.stream)

    return routes
