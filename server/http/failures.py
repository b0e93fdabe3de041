"""Every error becomes a response: in the shape of the dialect that the client speaks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from model.errors import InputError
from server.errors import HttpError, NotFoundError, error_body, error_headers, error_status
from server.http.dialect import Dialect

log = logging.getLogger("crossturn.errors")


class Failures:
    """Answers errors.

    Args:
        dialects: the first of them that the client speaks gives the shape; OpenAI's is everybody else's.
    """

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = dialects

    def install(self, app: FastAPI) -> None:
        """Make ``app`` answer every error this way, those of the framework included."""
        app.add_exception_handler(InputError, self._answer)
        app.add_exception_handler(HttpError, self._answer)
        app.add_exception_handler(HTTPException, self._answer_http)
        app.add_exception_handler(RequestValidationError, self._answer_validation)
        # Faults of our own are answered here and raised on, to uvicorn, which logs them.
        app.add_exception_handler(Exception, self._answer)

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
                request.url.path,
                response.status_code,
                message,
            )
        return response

    async def _answer_validation(self, request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)  # of a path or its query
        detail = error.errors()[0]
        param = str(detail["loc"][-1])
        message = f"Invalid value for '{param}': {detail['msg'][:1].lower()}{detail['msg'][1:]}."
        return await self._answer(request, InputError(message, param=param, code="invalid_value"))

    async def _answer_http(self, request: Request, error: Exception) -> JSONResponse:
        if error_status(error) == 404:  # of the framework: no route is there
            error = NotFoundError(f"There is no {request.method} {request.url.path} on this server.")
        response = await self._answer(request, error)
        if response.status_code == 405:
            response.headers["Allow"] = ", ".join(_methods_at(request))
        return response


def _methods_at(request: Request) -> list[str]:
    """What may be done at the path of ``request``; the framework names the methods of one route only."""
    routes: list[BaseRoute] = request.app.routes
    return [
        method
        for method in ("GET", "HEAD", "POST", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
