"""``GET /v1/models`` and ``GET /v1/models/{id}`` for clients that send ``anthropic-version``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope
from typing_extensions import TypedDict

from model.errors import InputError
from server.http.gateway import Gateway
from server.http.intake import authenticate
from server.turn.served import Served

PAGE = 20


class ModelBody(TypedDict):
    """A model as Anthropic lists it. Prompt and reply share one limit."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class ModelPage(TypedDict):
    """The names that clients choose from."""

    data: list[ModelBody]
    has_more: bool
    first_id: str | None
    last_id: str | None


class OwnRoute(APIRoute):
    """A route that matches only requests of this dialect: OpenAI's has the same paths."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and "anthropic-version" not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


def router(gateway: Gateway) -> APIRouter:
    """The models endpoints; they must be matched before OpenAI's."""
    routes = APIRouter(route_class=OwnRoute, include_in_schema=False, dependencies=[Depends(authenticate)])
    served = gateway.served

    @routes.get("/v1/models")
    async def list_models(
        after_id: str | None = None,
        before_id: str | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = PAGE,
    ) -> ModelPage:
        names, has_more = _page(served.listed, after_id, before_id, limit)
        return ModelPage(
            data=[_body(served, name) for name in names],
            has_more=has_more,
            first_id=names[0] if names else None,
            last_id=names[-1] if names else None,
        )

    @routes.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> ModelBody:
        served.check_name(name)
        return _body(served, name)

    return routes


def _page(
    names: Sequence[str], after: str | None, before: str | None, limit: int
) -> tuple[Sequence[str], bool]:
    """At most ``limit`` of the ``names`` after one and before another, and whether there are more."""
    for where, name in (("after_id", after), ("before_id", before)):
        if name is not None and name not in names:
            raise InputError(f"'{where}' is '{name}', which is not one of the models.", param=where)
    start = 0 if after is None else names.index(after) + 1
    end = len(names) if before is None else names.index(before)
    chosen = names[start:end]
    page = chosen[:limit] if before is None else chosen[-limit:]
    return page, len(chosen) > len(page)


def _body(served: Served, name: str) -> ModelBody:
    limit = served.info.context_length
    return ModelBody(
        type="model",
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(served.created, UTC).isoformat(),
        lifecycle="active",
        max_input_tokens=limit,
        max_tokens=limit,
    )
