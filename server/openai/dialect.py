"""OpenAI's chat and completions dialect: its routes and its bodies."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from typing_extensions import TypedDict

from server.http.dialect import Dialect, errors, streams, takes
from server.http.gateway import Gateway
from server.http.intake import Arrival, arrives, authenticate
from server.http.run import Answer
from server.openai import tokens
from server.openai.bodies import ChatCompletion, ChatCompletionChunk, Completion
from server.openai.completions import CompletionEncoder, compose_completion
from server.openai.decoder import compose_chat
from server.openai.encoder import ChatEncoder
from server.openai.schema import ChatRequest, CompletionRequest
from server.openai.tokens import DetokenizeRequest, TokenizeRequest
from server.turn.served import Served

ChatArrival = Annotated[Arrival, arrives("chatcmpl-")]
CompletionArrival = Annotated[Arrival, arrives("cmpl-")]


class ModelBody(TypedDict):
    """A model as OpenAI lists it; ``context_length`` and ``max_model_len`` are its limit in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    max_model_len: int


class ModelList(TypedDict):
    """The names that clients choose from; requests may also name the model by its path or repository."""

    object: Literal["list"]
    data: list[ModelBody]


def router(gateway: Gateway) -> APIRouter:
    """Chat completions and completions."""
    routes = APIRouter()
    settings, served = gateway.settings, gateway.served
    failing = errors(400, 401, 404, 413, 415, 500, 503)

    @routes.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        tags=["chat"],
        openapi_extra=takes(ChatRequest),
        responses={**failing, **streams(ChatCompletion, ChatCompletionChunk)},
    )
    async def create_chat_completion(request: Request, arrival: ChatArrival) -> Response:
        run = gateway.new_run(arrival.id)
        chat = await gateway.on_worker(compose_chat, arrival, served, settings)
        return await gateway.answer(request, run, chat.turn, ChatEncoder(chat.shape), stream=chat.stream)

    @routes.post(
        "/v1/completions",
        summary="Go on from a text",
        tags=["completions"],
        openapi_extra=takes(CompletionRequest),
        responses={**failing, **streams(Completion, Completion)},
    )
    async def create_completion(request: Request, arrival: CompletionArrival) -> Response:
        run = gateway.new_run(arrival.id)
        asked = await gateway.on_worker(compose_completion, arrival, served)
        run.record.describe(who=asked.who, thinking=None)
        answer = Answer(run=run, generations=asked.generations, encoder=CompletionEncoder(asked.shape))
        return await answer.send(request, settings, stream=asked.stream)

    return routes


def models(gateway: Gateway) -> APIRouter:
    """The models endpoints."""
    routes = APIRouter(tags=["models"], responses=errors(401), dependencies=[Depends(authenticate)])
    served = gateway.served

    @routes.get("/v1/models", summary="List the names of the model that is served")
    @routes.get("/v1/models/", include_in_schema=False)
    async def list_models() -> ModelList:
        return ModelList(object="list", data=[_model_body(served, name) for name in served.listed])

    @routes.get("/v1/models/{name:path}", summary="Describe the model", responses=errors(404))
    async def retrieve_model(name: str) -> ModelBody:
        served.check_name(name)
        return _model_body(served, name)

    return routes


def _model_body(served: Served, name: str) -> ModelBody:
    limit = served.info.context_length
    return ModelBody(
        id=name,
        object="model",
        created=served.created,
        owned_by="crossturn",
        context_length=limit,
        max_model_len=limit,
    )


OPENAI = Dialect(
    routers=(router, tokens.router),
    contested=(models,),
    bodies=(ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest),
)
