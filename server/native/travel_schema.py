"""The bodies of the endpoints that move conversations between servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from server.http.schema import Schema

Name = Annotated[str, Field(pattern=r"^[0-9a-f]{32}\.(rows|state)$")]
Names = Annotated[list[Name], Field(max_length=100_000)]


class ExportRequest(Schema):
    """What of a slot's file need not be sent."""

    without: Names | None = None


class MissingRequest(Schema):
    """Names of content that another server would send."""

    names: Names


class SlotContents(TypedDict):
    """The names of a slot's content."""

    object: Literal["slot.contents"]
    slot: str
    names: list[str]


class MissingContents(TypedDict):
    """Those of the names that this server lacks."""

    object: Literal["slot.missing"]
    names: list[str]


class SlotImported(TypedDict):
    """What was taken in."""

    object: Literal["slot.imported"]
    slot: str
    entries: int
    tokens: int
