"""What the app must know of a dialect: its routes, its bodies, and how it tells errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from server.errors import error_body
from server.http.gateway import Gateway
from server.http.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A room of endpoints.

    Attributes:
        routers: make the routes.
        bodies: the request bodies among them, for the OpenAPI document.
        speaks: whether a request, of whatever path, comes from a client of this dialect, which is told errors
            by :attr:`error_body`. None where OpenAI's shape will do.
        error_body: an error as its clients read it.
    """

    routers: tuple[Callable[[Gateway], APIRouter], ...]
    bodies: tuple[type[Schema], ...] = ()
    speaks: Callable[[Request], bool] | None = None
    error_body: Callable[[Exception], Mapping[str, Any]] = error_body
