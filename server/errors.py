"""The HTTP kinds of :class:`~model.errors.CrossturnError`, and every error's body in OpenAI's shape.

::

    CrossturnError
    └── HttpError
        ├── AuthenticationError   401
        ├── NotFoundError         404
        ├── BodyTooLargeError     413
        ├── MediaTypeError        415
        ├── EngineFaultError      500
        └── UnavailableError      503, with Retry-After

An ``InputError`` of the rooms below is a 400.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from typing_extensions import TypedDict

from model.errors import CrossturnError, InputError

log = logging.getLogger("crossturn.errors")


class ErrorFields(TypedDict):
    """What OpenAI tells of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every response that is not a success, and of the error frame of a stream."""

    error: ErrorFields


class HttpError(CrossturnError):
    """An error with a status of its own.

    Args:
        message: one sentence for the client.
        param: the request field at fault, or None.
        code: a machine-readable code in OpenAI's style, or None.
    """

    status = 500
    type = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        return {}


class AuthenticationError(HttpError):
    """No key, or one this server does not know."""

    status = 401
    type = "invalid_request_error"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class NotFoundError(HttpError):
    """The model or slot that was named is not here."""

    status = 404
    type = "invalid_request_error"


class BodyTooLargeError(HttpError):
    """The body is longer than the server reads; the connection closes, as its rest stays unread."""

    status = 413
    type = "invalid_request_error"

    @property
    def headers(self) -> dict[str, str]:
        return {"Connection": "close"}


class MediaTypeError(HttpError):
    """The body is not declared to be JSON."""

    status = 415
    type = "invalid_request_error"


class EngineFaultError(HttpError):
    """The engine failed at this request through no fault of the client's."""


class UnavailableError(HttpError):
    """The server cannot take this request now; it may later."""

    status = 503

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, round(self.retry_after_s)))}


def error_body(error: Exception) -> ErrorBody:
    """``error`` as a client reads it. What is not of our tree is reported without its text."""
    match error:
        case InputError():
            fields = ErrorFields(
                message=error.message, type="invalid_request_error", param=error.param, code=error.code
            )
        case HttpError():
            fields = ErrorFields(message=error.message, type=error.type, param=error.param, code=error.code)
        case HTTPException():
            fields = ErrorFields(
                message=str(error.detail), type="invalid_request_error", param=None, code=None
            )
        case _:
            fields = ErrorFields(
                message="The server met an error of its own; its log has the details.",
                type="server_error",
                param=None,
                code="internal_error",
            )
    return ErrorBody(error=fields)


def error_status(error: Exception) -> int:
    """The HTTP status of ``error``."""
    match error:
        case InputError():
            return 400
        case HttpError():
            return error.status
        case HTTPException():
            return error.status_code
        case _:
            return 500


def error_response(error: Exception) -> JSONResponse:
    """``error`` as a whole response."""
    headers = dict(error.headers or {}) if isinstance(error, HttpError | HTTPException) else {}
    return JSONResponse(error_body(error), status_code=error_status(error), headers=headers)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    response = error_response(error)
    if response.status_code < 500:
        message = error_body(error)["error"]["message"]
        log.info(
            "refused %s %s status=%d: %s", request.method, request.url.path, response.status_code, message
        )
    return response


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    if error_status(error) == 404:  # of the framework: no route is there
        error = NotFoundError(f"There is no {request.method} {request.url.path} on this server.")
    response = await _answer(request, error)
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


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error in OpenAI's shape, those of the framework included."""
    app.add_exception_handler(InputError, _answer)
    app.add_exception_handler(HttpError, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    # Faults of our own are answered here and raised on, to uvicorn, which logs them.
    app.add_exception_handler(Exception, _answer)
