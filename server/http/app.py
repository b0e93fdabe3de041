"""The app: the routes of all dialects, the headers for browsers, and every error as a response in the shape
of the dialect that its client speaks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message

from model.errors import InputError, shortened
from server.anthropic.dialect import ANTHROPIC
from server.errors import HttpError, NotFoundError, error_body, error_headers, error_status
from server.http.connection import Gate
from server.http.dialect import Dialect, document
from server.http.gateway import Gateway
from server.http.intake import Keys
from server.native import health
from server.native.dialect import NATIVE
from server.openai.dialect import OPENAI
from server.page.page import read_page
from server.page.page import router as page_files
from server.responses.dialect import RESPONSES
from server.telemetry.log import safe

log = logging.getLogger("crossturn.errors")

DIALECTS = (ANTHROPIC, OPENAI, RESPONSES, NATIVE)
"""The dialects that are served. Of those with the same path, the last takes what the others leave."""

ON_THIS_MACHINE = r"https?://(localhost|[a-z0-9-]+\.localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?"
"""Origins of pages that this machine serves."""


def create_app(gateway: Gateway, keys: Keys | None = None) -> FastAPI:
    """The ASGI application over ``gateway``; without ``keys`` every request is let in."""
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
    app.add_middleware(Gate, settings=gateway.settings, keys=keys, answer=failures.response)
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


async def warm_up(app: FastAPI) -> None:
    """Build what FastAPI would build while the first request waits: the middleware, and the schemas of all
    routes, which it derives when it first compares their paths with a request's."""
    inspect.getsourcelines(warm_up)  # FastAPI reads an endpoint's: Python's tokenizer has patterns to compile
    app.middleware_stack = app.build_middleware_stack()
    nowhere = {
        "type": "http",
        "method": "GET",
        "path": "/-",
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Message) -> None:
        """Nobody asked."""

    await app.router(nowhere, receive, send)


class Failures:
    """Answers errors.

    Args:
        dialects: the first that the client speaks gives the shape of the body; OpenAI's is the default.
        paths: all paths that have a route.
    """

    def __init__(self, dialects: Sequence[Dialect], paths: Iterable[str] = ()) -> None:
        self._dialects = dialects
        self._paths = sorted(path for path in paths if "{" not in path)

    def install(self, app: FastAPI) -> None:
        """Make ``app`` answer all errors this way, including those of the framework."""
        app.add_exception_handler(InputError, self._answer)
        app.add_exception_handler(HttpError, self._answer)
        app.add_exception_handler(HTTPException, self._answer_http)
        app.add_exception_handler(RequestValidationError, self._answer_validation)

    def response(self, request: Request, error: Exception) -> JSONResponse:
        """``error`` as a whole response."""
        tell = next(
            (dialect.error_body for dialect in self._dialects if dialect.speaks and dialect.speaks(request)),
            error_body,
        )
        return JSONResponse(tell(error), status_code=error_status(error), headers=error_headers(error))

    async def _answer(self, request: Request, error: Exception) -> JSONResponse:
        response = self.response(request, error)
        if response.status_code < 500:
            message = error_body(error)["error"]["message"]
            log.info(
                "refused %s %s status=%d: %s",
                request.method,
                safe(request.url.path, 200),
                response.status_code,
                safe(message, 300),
            )
        return response

    async def _answer_validation(self, request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)  # of a path or its query
        detail = error.errors()[0]
        param = str(detail["loc"][-1])
        message = f"Invalid value for '{param}': {detail['msg'][:1].lower()}{detail['msg'][1:]}."
        return await self._answer(request, InputError(message, param=param, code="invalid_value"))

    async def _answer_http(self, request: Request, error: Exception) -> JSONResponse:
        if error_status(error) == 404:  # from the framework: no route has this path
            error = NotFoundError(self._where_else(request))
        response = await self._answer(request, error)
        if response.status_code == 405:
            response.headers["Allow"] = ", ".join(_methods_at(request))
        return response

    def _where_else(self, request: Request) -> str:
        """Says that no route has the path of ``request``, and which path may be meant."""
        path = request.url.path.rstrip("/")
        told = f"There is no {request.method} {shortened(request.url.path, 200)} on this server."
        if path.startswith("/api/"):
            return f"{told} It does not speak Ollama's protocol but OpenAI's: the base URL ends in /v1."
        meant = [other for other in self._paths if path and path != other and _is_tail(path, other)]
        hint = f"Do you mean {meant[-1]}?" if meant else "The API is below /v1; /docs lists it."
        return f"{told} {hint}"


def _is_tail(path: str, other: str) -> bool:
    """Whether one of the paths ends with the other: a ``/v1`` is missing, or there is one too many."""
    return other.endswith(path) or (path.endswith(other) and other.startswith("/v1/"))


def _methods_at(request: Request) -> list[str]:
    """The methods that the path of ``request`` allows; the framework names those of one route only."""
    routes: list[BaseRoute] = request.app.routes
    return [
        method
        for method, asked in (("GET", "GET"), ("HEAD", "GET"), ("POST", "POST"), ("DELETE", "DELETE"))
        if any(route.matches({**request.scope, "method": asked})[0] is Match.FULL for route in routes)
    ]
