"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from typing_extensions import TypedDict

from server.http.auth import authenticate
from server.http.gateway import Gateway
from server.http.openapi import errors
from server.turn.served import Served


class ModelBody(TypedDict):
    """A model as OpenAI lists it; ``context_length`` and ``max_model_len`` are the true limit in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    max_model_len: int


class ModelList(TypedDict):
    """The names that clients choose from; the model answers to its path and its repository too."""

    object: Literal["list"]
    data: list[ModelBody]


def router(gateway: Gateway) -> APIRouter:
    """The models endpoints."""
    routes = APIRouter(tags=["models"], responses=errors(401))
    served, api_keys = gateway.served, gateway.settings.api_keys

    @routes.get("/v1/models", summary="List the names of the model that is served")
    async def list_models(request: Request) -> ModelList:
        authenticate(request.headers, api_keys)
        return ModelList(object="list", data=[_body(served, name) for name in served.listed])

    @routes.get("/v1/models/{name:path}", summary="Describe the model", responses=errors(404))
    async def retrieve_model(request: Request, name: str) -> ModelBody:
        authenticate(request.headers, api_keys)
        served.check_name(name)
        return _body(served, name)

    return routes


def _body(served: Served, name: str) -> ModelBody:
    limit = served.info.context_length
    return ModelBody(
        id=name,
        object="model",
        created=served.created,
        owned_by="crossturn",
        context_length=limit,
        max_model_len=limit,
    )
