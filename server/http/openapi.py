"""The OpenAPI document: request bodies are validated by hand, off the loop, so they are described by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from server.errors import ErrorBody
from server.http.schema import Schema

_REF = "#/components/schemas/{model}"


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
