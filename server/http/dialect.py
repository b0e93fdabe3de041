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
    """A group of endpoints.

    Attributes:
        routers: make the routes.
        contested: make the routes at paths that another dialect has too. They are matched last, so that only
            requests to such a path are examined for their dialect.
        bodies: schemas of the request bodies, for the OpenAPI document.
        speaks: whether a request, whatever its path, comes from a client of this dialect: its errors are then
            those of :attr:`error_body`. None for OpenAI's shape.
        error_body: an error as clients of this dialect read it.
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
    """Make ``app`` serve a document whose components include the body ``schemas``."""

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
    """Remove the framework's own validation errors, which no endpoint answers with."""
    for path in described["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for schema in ("HTTPValidationError", "ValidationError"):
        described["components"]["schemas"].pop(schema, None)
