"""Puts the routes, the errors and the headers for browsers together."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from server.anthropic.dialect import ANTHROPIC
from server.http.connection import Gate
from server.http.dialect import document
from server.http.failures import Failures
from server.http.gateway import Gateway
from server.http.intake import Keys
from server.native import health
from server.native.dialect import NATIVE
from server.openai.dialect import OPENAI
from server.page.page import read_page
from server.page.page import router as page_files
from server.responses.dialect import RESPONSES

DIALECTS = (ANTHROPIC, OPENAI, RESPONSES, NATIVE)
"""All rooms of endpoints that are served. The last that has a path takes whatever the others leave there."""

ON_THIS_MACHINE = r"https?://(localhost|[a-z0-9-]+\.localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?"
"""Origins of pages that this machine serves itself."""


def create_app(gateway: Gateway, keys: Keys | None = None) -> FastAPI:
    """The ASGI application over ``gateway``; without ``keys`` everybody is let in."""
    keys = keys or Keys()
    app = FastAPI(
        title="crossturn",
        version=version("crossturn"),
        summary="OpenAI-compatible chat over Qwen3.5 hybrid models that never reads a conversation twice",
    )
    app.state.gateway = gateway
    app.state.keys = keys
    page = read_page()
    routers = [router(gateway) for dialect in DIALECTS for router in dialect.routers]
    routers += [health.router(gateway, page), page_files(page)]
    routers += [router(gateway) for dialect in DIALECTS for router in dialect.contested]
    paths = {route.path for router in routers for route in router.routes if isinstance(route, Route)}
    failures = Failures(DIALECTS, paths)
    failures.install(app)
    app.add_middleware(Gate, settings=gateway.settings, keys=keys, failures=failures)
    # Preflights carry no key: the middleware answers them before any route asks for one.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=gateway.settings.cors_origins,
        allow_origin_regex=ON_THIS_MACHINE,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["*"],
        max_age=3600,
    )
    for router in routers:
        app.include_router(router)
    document(app, [body for dialect in DIALECTS for body in dialect.bodies])
    return app
