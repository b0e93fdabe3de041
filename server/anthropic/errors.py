"""Errors in the shape and the words of this dialect."""

from __future__ import annotations

from typing import Literal

from starlette.requests import Request
from typing_extensions import TypedDict

from model.errors import InputError, PromptTooLongError
from server.errors import error_body as neutral_body
from server.errors import error_status

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
]
TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
"""By status; every other one is an ``invalid_request_error``."""


class ErrorFields(TypedDict):
    """An error; its message names the field at fault."""

    type: ErrorType
    message: str


class ErrorBody(TypedDict):
    """The body of every error response, and of the error event of a stream."""

    type: Literal["error"]
    error: ErrorFields
    request_id: str | None


def error_body(error: Exception, request_id: str | None = None) -> ErrorBody:
    """``error`` as a client reads it. The text of an exception from outside our tree is not disclosed."""
    fields = ErrorFields(
        type=TYPES.get(error_status(error), "invalid_request_error"), message=_message(error)
    )
    return ErrorBody(type="error", error=fields, request_id=request_id)


def _message(error: Exception) -> str:
    if isinstance(error, PromptTooLongError):
        # By these words, clients of this dialect recognise that they must compact the conversation.
        return f"prompt is too long: {error.n_tokens} tokens > {error.limit} maximum"
    message = neutral_body(error)["error"]["message"]
    if isinstance(error, InputError) and error.param and error.param not in message:
        return f"{error.param}: {message}"
    return message


def speaks(request: Request) -> bool:
    """Whether ``request`` comes from a client of this dialect."""
    return request.url.path.startswith("/v1/messages") or "anthropic-version" in request.headers
