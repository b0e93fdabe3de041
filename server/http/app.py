"""Puts the routes, the errors and the headers for browsers together."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from server.anthropic.dialect import ANTHROPIC
from server.http.failures import Failures
from server.http.gateway import Gateway
from server.http.openapi import document
from server.native import health
from server.native.dialect import NATIVE
from server.openai.dialect import OPENAI
from server.page.page import read_page
from server.page.page import router as page_files
from server.responses.dialect import RESPONSES

DIALECTS = (ANTHROPIC, OPENAI, RESPONSES, NATIVE)
"""All rooms of endpoints that are served; of two that have the same path, the first is asked first."""


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application over ``gateway``."""
    app = FastAPI(
        title="crossturn",
        version=version("crossturn"),
        summary="OpenAI-compatible chat over Qwen3.5 hybrid models that never reads a conversation twice",
    )
    app.state.gateway = gateway
    Failures(DIALECTS).install(app)
    # Preflights carry no key: the middleware answers them before any route asks for one.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=gateway.settings.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["*"],
        max_age=3600,
    )
    for dialect in DIALECTS:
        for router in dialect.routers:
            app.include_router(router(gateway))
    page = read_page()
    app.include_router(health.router(gateway, page))
    app.include_router(page_files(page))
    document(app, [body for dialect in DIALECTS for body in dialect.bodies])
    return app
