"""Moves conversations between servers: ``/v1/slots/{slot}/export``, ``/v1/slots/import``, and what is
missing."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from typing import IO

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from cache.planner import CrossTurnPrefixMetadata, SlotKey
from cache.store import BudgetError, Store
from cache.travel import (
    DamagedParcelError,
    Departure,
    ForeignParcelError,
    complete_contents,
    fingerprint_of,
    unpack,
)
from model.errors import InputError
from server.errors import BodyTooLargeError
from server.http.dialect import errors, takes
from server.http.gateway import Gateway
from server.http.intake import JsonBody, Tenant
from server.http.schema import parse
from server.native.schema import (
    ExportRequest,
    MissingContents,
    MissingRequest,
    SlotContents,
    SlotImported,
)
from server.native.slots import no_slot, slot_id

MEDIA_TYPE = "application/x-tar"
_SPOOL_BYTES = 8 * 2**20


def router(gateway: Gateway) -> APIRouter:
    """The endpoints that export and import conversations. A tenant moves only its own slots."""
    routes = APIRouter(tags=["slots"], responses=errors(401))
    _add_leaving(routes, gateway)
    waiting = Waiting(gateway.served.info.budget_bytes)
    gateway.on_close.append(waiting.close)
    _add_coming(routes, gateway, waiting)
    return routes


class Waiting:
    """Content that had arrived when an import was interrupted, so that it need not be sent again. It is kept
    in temporary files.

    Args:
        max_bytes: of all content together; beyond that, the oldest is dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._max_bytes = max_bytes
        self._sizes: dict[tuple[str | None, str], int] = {}

    def names(self, tenant: str | None) -> set[str]:
        """The names of what is kept for ``tenant``."""
        return {name for owner, name in self._sizes if owner == tenant}

    def read(self, tenant: str | None, name: str) -> bytes | None:
        """The content; None if it is not kept."""
        return self._path(tenant, name).read_bytes() if (tenant, name) in self._sizes else None

    def keep(self, tenant: str | None, name: str, content: bytes) -> None:
        """Keep ``content``."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="crossturn-", ignore_cleanup_errors=True)
        self._path(tenant, name).write_bytes(content)
        self._sizes[tenant, name] = len(content)
        while sum(self._sizes.values()) > self._max_bytes:
            self.drop(*next(iter(self._sizes)))

    def drop(self, tenant: str | None, name: str) -> None:
        """Drop the content, if it is kept."""
        if self._sizes.pop((tenant, name), None) is not None:
            self._path(tenant, name).unlink(missing_ok=True)

    def close(self) -> None:
        """Drop everything."""
        if self._folder is not None:
            self._folder.cleanup()

    def _path(self, tenant: str | None, name: str) -> Path:
        assert self._folder is not None
        owner = hashlib.blake2b(repr(tenant).encode(), digest_size=16).hexdigest()
        return Path(self._folder.name) / f"{owner}.{name}"


def _add_leaving(routes: APIRouter, gateway: Gateway) -> None:
    engine = gateway.engine

    async def leave(key: SlotKey, without: Collection[str]) -> Response:
        departure = await asyncio.wrap_future(engine.call(lambda store: store.depart(key, without)))
        if departure is None:
            raise no_slot(str(key))
        name = f'attachment; filename="{key}.crossturn"'
        return StreamingResponse(
            _pieces(departure, gateway), media_type=MEDIA_TYPE, headers={"Content-Disposition": name}
        )

    @routes.get("/v1/slots/{slot}/export", summary="A slot's conversations as a file", responses=errors(404))
    async def export_slot(tenant: Tenant, slot: str) -> Response:
        return await leave(SlotKey(tenant, slot_id(slot)), ())

    @routes.post(
        "/v1/slots/{slot}/export",
        summary="The same, without content that the other side has",
        openapi_extra=takes(ExportRequest),
        responses=errors(400, 404, 413, 415),
    )
    async def export_rest(tenant: Tenant, slot: str, body: JsonBody) -> Response:
        return await leave(SlotKey(tenant, slot_id(slot)), parse(ExportRequest, body).without or ())

    @routes.get("/v1/slots/{slot}/contents", summary="Names of a slot's content", responses=errors(404))
    async def list_contents(tenant: Tenant, slot: str) -> SlotContents:
        key = SlotKey(tenant, slot_id(slot))

        def look(store: Store) -> list[str] | None:
            departure = store.depart(key)
            if departure is None:
                return None
            store.departed(departure)
            return departure.content_names

        names = await asyncio.wrap_future(engine.call(look))
        if names is None:
            raise no_slot(slot)
        return SlotContents(object="slot.contents", slot=slot, names=names)


async def _pieces(departure: Departure, gateway: Gateway) -> AsyncIterator[bytes]:
    """The file in pieces, each of which is made between two steps of the engine."""
    try:
        while (
            piece := await asyncio.wrap_future(gateway.engine.call(lambda _: departure.read()))
        ) is not None:
            yield piece
    finally:
        gateway.engine.call(lambda store: store.departed(departure))


def _add_coming(routes: APIRouter, gateway: Gateway, waiting: Waiting) -> None:
    engine = gateway.engine

    @routes.post(
        "/v1/slots/missing",
        summary="What of some content this server lacks",
        openapi_extra=takes(MissingRequest),
        responses=errors(400, 413, 415),
    )
    async def list_missing(tenant: Tenant, body: JsonBody) -> MissingContents:
        asked = parse(MissingRequest, body).names
        held = await asyncio.wrap_future(engine.call(lambda store: set(store.contents(tenant))))
        missing = [name for name in asked if name not in held | waiting.names(tenant)]
        return MissingContents(object="slot.missing", names=missing)

    @routes.post(
        "/v1/slots/import",
        summary="Take a file of conversations in",
        openapi_extra={"requestBody": {"required": True, "content": {MEDIA_TYPE: {}}}},
        responses=errors(400, 409, 413),
    )
    async def import_slot(request: Request, tenant: Tenant, session_id: str | None = None) -> SlotImported:
        key = SlotKey.for_session(tenant, session_id or request.headers.get("x-session-id") or None)
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as file:
            try:
                await _receive(request, file, 2 * gateway.served.info.budget_bytes)
            except ClientDisconnect:
                with suppress(Exception):  # the client has disconnected
                    await _keep_what_came(gateway, file, tenant, waiting)
                return SlotImported(object="slot.imported", slot=str(key), entries=0, tokens=0)
            return await _take_in(gateway, file, key, waiting)


async def _receive(request: Request, file: IO[bytes], limit: int) -> None:
    n_bytes = 0
    async for chunk in request.stream():
        n_bytes += len(chunk)
        if n_bytes > limit:
            raise BodyTooLargeError("The file is larger than all that this server may hold.")
        file.write(chunk)
    file.seek(0)


async def _take_in(gateway: Gateway, file: IO[bytes], key: SlotKey, waiting: Waiting) -> SlotImported:
    tenant = key.tenant
    metadata, layout = await _reader(gateway)

    def known(names: Collection[str]) -> dict[str, bytes]:
        kept = {name: content for name in names if (content := waiting.read(tenant, name)) is not None}
        wanted = [name for name in names if name not in kept]
        return kept | (
            gateway.engine.call(lambda store: _held(store, tenant, wanted)).result() if wanted else {}
        )

    try:
        travellers = await gateway.on_worker(unpack, file, metadata, layout, known)
        n_entries = await asyncio.wrap_future(
            gateway.engine.call(lambda store: store.arrive(travellers, key))
        )
    except ForeignParcelError as error:
        message = f"The file is of another model: {error}."
        raise InputError(message, param=error.field, code="foreign_file") from error
    except DamagedParcelError as error:
        raise InputError(f"The file is damaged: {error}.", param="file", code="damaged_file") from error
    except BudgetError as error:
        raise BodyTooLargeError(f"The conversations are too large: {error}.") from error
    for traveller in travellers:
        for name in traveller.manifest.file_names:
            waiting.drop(tenant, name)
    n_tokens = sum(len(traveller.manifest.ids) for traveller in travellers)
    return SlotImported(object="slot.imported", slot=str(key), entries=n_entries, tokens=n_tokens)


def _held(store: Store, tenant: str | None, names: Collection[str]) -> dict[str, bytes]:
    """The content among ``names`` that the tenant has at rest. Called on the engine thread."""
    held = store.contents(tenant)
    return {name: held[name]() for name in names if name in held}


async def _keep_what_came(gateway: Gateway, file: IO[bytes], tenant: str | None, waiting: Waiting) -> None:
    metadata, layout = await _reader(gateway)
    file.seek(0)
    fingerprint = fingerprint_of(metadata, layout)
    for name, content in await gateway.on_worker(lambda: list(complete_contents(file, fingerprint))):
        waiting.keep(tenant, name, content)


async def _reader(gateway: Gateway) -> tuple[CrossTurnPrefixMetadata, str]:
    """What :func:`cache.travel.unpack` must know about the model that is served."""
    return await asyncio.wrap_future(gateway.engine.call(lambda store: (store.metadata, store.codec.layout)))
