"""``GET /health``, ``/ready``, ``/``, ``/v1`` and ``/version``, which need no key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request, Response
from typing_extensions import TypedDict

from server.client import EngineStats
from server.http.gateway import Gateway
from server.page.page import PageFile, wants_page


class HealthBody(TypedDict):
    """Whether the server makes progress, and how busy it is."""

    status: Literal["ok", "stalled"]
    running: int
    waiting: int


class ReadyBody(TypedDict):
    """Whether requests should be sent here."""

    status: Literal["ready", "stalled", "leaving"]


class VersionBody(TypedDict):
    """The server's version."""

    version: str


class WelcomeBody(TypedDict):
    """What this server is, and where its API is documented."""

    name: Literal["crossturn"]
    version: str
    documentation: str


def router(gateway: Gateway, page: Mapping[str, PageFile]) -> APIRouter:
    """The endpoints that need no key."""
    routes = APIRouter(tags=["server"])
    installed = version("crossturn")
    pulse = Pulse(gateway.clock, gateway.settings.stall_seconds)

    @routes.get(
        "/health",
        summary="Whether the server makes progress",
        responses={503: {"model": HealthBody, "description": "The engine makes no progress."}},
    )
    async def health(response: Response) -> HealthBody:
        stats = gateway.engine.stats()
        is_stalled = pulse.is_stalled(stats)
        response.status_code = 503 if is_stalled else 200
        return HealthBody(
            status="stalled" if is_stalled else "ok", running=stats.n_running, waiting=stats.n_waiting
        )

    @routes.get(
        "/ready",
        summary="Whether requests should be sent here",
        responses={503: {"model": ReadyBody, "description": "The server is stopping, or stalled."}},
    )
    async def ready(response: Response) -> ReadyBody:
        if gateway.is_leaving:
            response.status_code = 503
            return ReadyBody(status="leaving")
        is_stalled = pulse.is_stalled(gateway.engine.stats())
        response.status_code = 503 if is_stalled else 200
        return ReadyBody(status="stalled" if is_stalled else "ready")

    @routes.get("/version", summary="The server's version")
    async def tell_version() -> VersionBody:
        return VersionBody(version=installed)

    @routes.get("/v1", summary="What this server is")
    async def welcome() -> WelcomeBody:
        return WelcomeBody(name="crossturn", version=installed, documentation="/docs")

    @routes.get("/", summary="The page; for programs, what this server is", response_model=WelcomeBody)
    async def front(request: Request) -> Response | WelcomeBody:
        return page["index.html"].answer(request) if wants_page(request) else await welcome()

    return routes


@dataclass
class Pulse:
    """Judges whether the engine has stalled, from when it last made progress or had nothing to do.

    Args:
        clock: seconds, monotonic.
        stall_s: an engine that has work and makes no progress for so long has stalled.
    """

    clock: Callable[[], float]
    stall_s: float
    _n_steps: int = -1
    _moved_at: float = field(default=0.0)

    def is_stalled(self, stats: EngineStats) -> bool:
        """Whether the engine has stalled, given its present ``stats``."""
        if not stats.is_alive:
            return True
        is_idle = stats.n_running == stats.n_waiting == 0
        if is_idle or stats.n_steps != self._n_steps:
            self._n_steps, self._moved_at = stats.n_steps, self.clock()
        return self.clock() - self._moved_at > self.stall_s
