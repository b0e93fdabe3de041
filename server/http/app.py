"""Puts the routes, the errors and the headers for browsers together."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from server import errors
from server.http.gateway import Gateway
from server.http.openapi import document
from server.native import health, metrics, slots, stats, tokens
from server.native.slots_schema import ForkRequest
from server.native.tokens_schema import DetokenizeRequest, TokenizeRequest
from server.openai import chat, completions, models
from server.openai.chat_schema import ChatRequest
from server.openai.completion_schema import CompletionRequest
from server.page.page import read_page
from server.page.page import router as page_files


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application over ``gateway``."""
    app = FastAPI(
        title="crossturn",
        version=version("crossturn"),
        summary="OpenAI-compatible chat over Qwen3.5 hybrid models that never reads a conversation twice",
    )
    errors.install(app)
    # Preflights carry no key: the middleware answers them before any route asks for one.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=gateway.settings.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["*"],
        max_age=3600,
    )
    for family in (chat, completions, models, tokens, slots, metrics, stats):
        app.include_router(family.router(gateway))
    page = read_page()
    app.include_router(health.router(gateway, page))
    app.include_router(page_files(page))
    document(app, [ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, ForkRequest])
    return app
