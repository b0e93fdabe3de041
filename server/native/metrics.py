"""``GET /metrics``, for Prometheus."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST

from server.http.dialect import errors
from server.http.gateway import Gateway
from server.http.intake import authorise_figures
from server.telemetry.metrics import figures_of


def router(gateway: Gateway) -> APIRouter:
    """The metrics endpoint; a server with API keys asks for one that may read them."""
    routes = APIRouter(tags=["server"], responses=errors(401, 403), dependencies=[Depends(authorise_figures)])

    @routes.get(
        "/metrics",
        summary="What happened so far",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        store = await asyncio.wrap_future(gateway.engine.call(figures_of))
        text = gateway.metrics.text(gateway.engine.stats(), store)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return routes
