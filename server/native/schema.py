"""The bodies of the slots endpoints, and of those that move conversations between servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from server.http.schema import Schema


class ForkRequest(Schema):
    """The session key under which a slot's conversations are to be found as well."""

    session_id: Annotated[str, Field(min_length=1)]


class EntryBody(TypedDict):
    """One remembered conversation: lengths in tokens, ages in seconds."""

    number: int
    tokens: int
    bytes: int
    checkpoints: list[int]
    age_s: float
    idle_s: float
    hits: int
    running: bool
    parent: str | None


class SlotBody(TypedDict):
    """The memory of one session."""

    object: Literal["slot"]
    slot: str
    tokens: int
    bytes: int
    entries: list[EntryBody]


class SlotList(TypedDict):
    """All slots of a tenant, the memory that they hold, and the budget of all tenants together."""

    object: Literal["list"]
    data: list[SlotBody]
    bytes: int
    budget_bytes: int


class SlotDeleted(TypedDict):
    """A slot that was deleted."""

    object: Literal["slot.deleted"]
    slot: str
    entries: int
    deleted: Literal[True]


class SlotForked(TypedDict):
    """A slot whose conversations were copied from another one."""

    object: Literal["slot.forked"]
    slot: str
    source: str
    entries: int


class DivergenceBody(TypedDict):
    """Where a request diverged from what its session remembered: the message, and the text around the
    place."""

    message: int
    role: str
    remembered: str
    sent: str


class TurnBody(TypedDict):
    """One request of a session: what was prefilled again, and what can be done about it."""

    id: str
    at: float
    mode: str
    prompt_tokens: int
    reused_tokens: int
    read_again_tokens: int
    new_tokens: int
    first_token_s: float | None
    divergence: DivergenceBody | None
    explanation: str


class SlotTimeline(TypedDict):
    """The last requests of a slot, oldest first."""

    object: Literal["slot.timeline"]
    slot: str
    data: list[TurnBody]


Name = Annotated[str, Field(pattern=r"^[0-9a-f]{32}\.(rows|state)$")]
Names = Annotated[list[Name], Field(max_length=100_000)]


class ExportRequest(Schema):
    """The parts of a slot's file that need not be sent."""

    without: Names | None = None


class MissingRequest(Schema):
    """Names of content that another server could send."""

    names: Names


class SlotContents(TypedDict):
    """The names of a slot's content."""

    object: Literal["slot.contents"]
    slot: str
    names: list[str]


class MissingContents(TypedDict):
    """The names of content that this server lacks."""

    object: Literal["slot.missing"]
    names: list[str]


class SlotImported(TypedDict):
    """What was imported."""

    object: Literal["slot.imported"]
    slot: str
    entries: int
    tokens: int
