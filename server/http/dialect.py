"""What the app must know of a dialect: its routes, how it tells errors, and how its bodies are described.

Request bodies are validated by hand, off the event loop, so the OpenAPI document describes them by hand too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.requests import Request

from server.errors import ErrorBody, error_body
from server.http.gateway import Gateway
from server.http.schema import Schema

_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A room of endpoints.

    Attributes:
        routers: make the routes.
        contested: make those at paths that another dialect has, too. They are matched after all others: only
            requests to these paths are looked at for which dialect they are in.
        bodies: the request bodies among them, for the OpenAPI document.
        speaks: whether a request, of whatever path, comes from a client of this dialect, which is told errors
            by :attr:`error_body`. None where OpenAI's shape will do.
        error_body: an error as its clients read it.
    """

    routers: tuple[Callable[[Gateway], APIRouter], ...]
    contested: tuple[Callable[[Gateway], APIRouter], ...] = ()
    bodies: tuple[type[Schema], ...] = ()
    speaks: Callable[[Request], bool] | None = None
    error_body: Callable[[Exception], Mapping[str, Any]] = error_body


def takes(schema: type[Schema]) -> dict[str, Any]:
    """``openapi_extra`` of a route whose body is a ``schema``."""
    reference = {"$ref": _REF.format(model=schema.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that may answer with these error statuses."""
    return {status: {"model": ErrorBody} for status in statuses}


def streams(whole: type[Any], chunk: type[Any]) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that answers with a ``whole`` body or a stream of ``chunk`` frames."""
    described = f"Frames of a `{chunk.__name__}` each, then `[DONE]`; an error frame when it fails midway."
    event = {
        "type": "object",
        "description": "One server-sent event.",
        "properties": {"data": {"type": "string", "description": described}},
        "required": ["data"],
    }
    return {200: {"model": whole, "content": {"text/event-stream": {"schema": event}}}}


def document(app: FastAPI, schemas: list[type[Schema]]) -> None:
    """Make ``app`` serve a document that has the body ``schemas`` among its components."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes
            )
            _, definitions = models_json_schema(
                [(schema, "validation") for schema in schemas], ref_template=_REF
            )
            described["components"]["schemas"] |= definitions["$defs"]
            _drop_unprocessable(described)
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _drop_unprocessable(described: dict[str, Any]) -> None:
    """Leave out the framework's own validation errors: nothing here answers with them."""
    for path in described["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for schema in ("HTTPValidationError", "ValidationError"):
        described["components"]["schemas"].pop(schema, None)
