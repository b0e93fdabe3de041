"""The errors with an HTTP status, under :class:`~model.errors.CrossturnError`, and their body in OpenAI's
form.

::

    CrossturnError
    └── HttpError
        ├── AuthenticationError   401
        ├── ForbiddenError        403
        ├── NotFoundError         404
        ├── LateBodyError         408
        ├── BodyTooLargeError     413
        ├── MediaTypeError        415
        ├── HeadTooLargeError     431
        ├── EngineFaultError      500
        └── UnavailableError      503, with Retry-After
            └── RateLimitError    429

An ``InputError``, which any room may raise, is a 400. ``server/http/app.py`` turns errors into responses.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from model.errors import CrossturnError, InputError, shortened


class ErrorFields(TypedDict):
    """OpenAI's fields of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every failed response, and of the error frame of a stream."""

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
        message = shortened(message)  # it may quote the client
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    @property
    def headers(self) -> dict[str, str]:
        return {}


class AuthenticationError(HttpError):
    """No API key, or an unknown one."""

    status = 401
    type = "invalid_request_error"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class ForbiddenError(HttpError):
    """This server, or this key, does not allow the request."""

    status = 403
    type = "invalid_request_error"


class LateBodyError(HttpError):
    """The body did not arrive in time; the connection closes, because the rest may still come."""

    status = 408
    type = "invalid_request_error"

    @property
    def headers(self) -> dict[str, str]:
        return {"Connection": "close"}


class NotFoundError(HttpError):
    """The named model, slot or other object does not exist."""

    status = 404
    type = "invalid_request_error"


class BodyTooLargeError(HttpError):
    """The body is longer than the server accepts; the connection closes, because the rest is not read."""

    status = 413
    type = "invalid_request_error"

    @property
    def headers(self) -> dict[str, str]:
        return {"Connection": "close"}


class MediaTypeError(HttpError):
    """The body is not declared to be JSON."""

    status = 415
    type = "invalid_request_error"


class HeadTooLargeError(HttpError):
    """The request's headers are longer than the server accepts."""

    status = 431
    type = "invalid_request_error"


class EngineFaultError(HttpError):
    """The engine failed through no fault of the client."""


class UnavailableError(HttpError):
    """The server cannot accept this request now, but may later."""

    status = 503

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, round(self.retry_after_s)))}


class RateLimitError(UnavailableError):
    """The client has used up its share for now."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, code="rate_limit_exceeded", retry_after_s=retry_after_s)


def error_body(error: Exception) -> ErrorBody:
    """``error`` as the client sees it. The text of an exception outside our tree is not shown."""
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


def error_headers(error: Exception) -> dict[str, str]:
    """The HTTP headers of ``error``."""
    return dict(error.headers or {}) if isinstance(error, HttpError | HTTPException) else {}
