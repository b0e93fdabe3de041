"""The endpoints that belong to no other dialect. This file has those of the live figures: ``/v1/stats`` for
the page and ``crossturn top``, ``/metrics`` for Prometheus.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST
from typing_extensions import TypedDict

from server.http.dialect import Dialect, errors
from server.http.gateway import Gateway
from server.http.intake import authorise_figures
from server.native import slots, travel
from server.native.schema import ExportRequest, ForkRequest, MissingRequest
from server.telemetry.record import figures_of


class StatsBody(TypedDict):
    """Totals since the start, and the load now."""

    running: int
    waiting: int
    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    read_ahead_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    bytes: int
    budget_bytes: int
    evictions: int


def router(gateway: Gateway) -> APIRouter:
    """The endpoints of the live figures; a server with API keys asks for one that may read them."""
    routes = APIRouter(tags=["server"], responses=errors(401, 403), dependencies=[Depends(authorise_figures)])

    @routes.get("/v1/stats", summary="The live figures")
    async def stats() -> StatsBody:
        store = await asyncio.wrap_future(gateway.engine.call(figures_of))
        engine = gateway.engine.stats()
        return StatsBody(
            running=engine.n_running,
            waiting=engine.n_waiting,
            prompt_tokens=engine.n_prompt_tokens,
            reused_tokens=engine.n_reused_tokens,
            prefilled_tokens=engine.n_prefilled_tokens,
            read_ahead_tokens=engine.n_read_ahead_tokens,
            generated_tokens=engine.n_generated_tokens,
            drafted_tokens=engine.n_drafted_tokens,
            accepted_tokens=engine.n_accepted_tokens,
            bytes=store.n_bytes,
            budget_bytes=store.budget_bytes,
            evictions=store.counters.n_evicted_entries + store.counters.n_evicted_checkpoints,
        )

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


NATIVE = Dialect(
    routers=(travel.router, slots.router, router),
    bodies=(ForkRequest, ExportRequest, MissingRequest),
)
