"""``/v1/slots``: what is remembered, for the tenant to which it belongs."""

from __future__ import annotations

import asyncio
import re

from fastapi import APIRouter

from cache.planner import CrossTurnSlotId, SlotKey
from cache.slots import EntryInfo, SlotInfo
from cache.store import Store
from model.errors import InputError
from server.errors import NotFoundError
from server.events import Divergence, PlanReport
from server.http.dialect import errors, takes
from server.http.gateway import Gateway
from server.http.intake import JsonBody, Tenant
from server.http.schema import parse
from server.native.schema import (
    DivergenceBody,
    EntryBody,
    ForkRequest,
    SlotBody,
    SlotDeleted,
    SlotForked,
    SlotList,
    SlotTimeline,
    TurnBody,
)
from server.telemetry.record import PastTurn

_LONGEST_TEXT = 60
_CONTEXT = 8
"""Characters shown after a difference."""


def router(gateway: Gateway) -> APIRouter:
    """The slots endpoints. A tenant sees its own slots only."""
    routes = APIRouter(tags=["slots"], responses=errors(401))
    _add_looking(routes, gateway)
    _add_changing(routes, gateway)
    return routes


def _add_looking(routes: APIRouter, gateway: Gateway) -> None:
    engine = gateway.engine

    @routes.get("/v1/slots", summary="List the slots")
    async def list_slots(tenant: Tenant) -> SlotList:

        def look(store: Store) -> SlotList:
            slots = [_slot_body(slot) for slot in store.slots(tenant)]
            return SlotList(
                object="list",
                data=slots,
                # Not the store's sum: the bytes of other tenants would reveal when they are active.
                bytes=sum(slot["bytes"] for slot in slots),
                budget_bytes=store.budget_bytes,
            )

        return await asyncio.wrap_future(engine.call(look))

    @routes.get("/v1/slots/{slot}", summary="Describe a slot", responses=errors(404))
    async def retrieve_slot(tenant: Tenant, slot: str) -> SlotBody:
        wanted = SlotKey(tenant, slot_id(slot))
        known = await asyncio.wrap_future(engine.call(lambda store: store.slots(tenant)))
        found = next((info for info in known if info.slot == wanted), None)
        if found is None:
            raise no_slot(slot)
        return _slot_body(found)

    @routes.get(
        "/v1/slots/{slot}/timeline",
        summary="What a slot's last requests read, and why",
        responses=errors(404),
    )
    async def slot_timeline(tenant: Tenant, slot: str) -> SlotTimeline:
        turns = gateway.timeline.of(SlotKey(tenant, slot_id(slot)))
        if not turns:
            raise no_slot(slot)
        return SlotTimeline(object="slot.timeline", slot=slot, data=[_turn_body(turn) for turn in turns])


def _add_changing(routes: APIRouter, gateway: Gateway) -> None:
    engine = gateway.engine

    @routes.delete("/v1/slots/{slot}", summary="Forget a slot", responses=errors(404))
    async def delete_slot(tenant: Tenant, slot: str) -> SlotDeleted:
        wanted = SlotKey(tenant, slot_id(slot))
        n_entries = await asyncio.wrap_future(engine.call(lambda store: store.delete(wanted)))
        gateway.timeline.forget(wanted)
        if not n_entries:
            raise no_slot(slot)
        return SlotDeleted(object="slot.deleted", slot=slot, entries=n_entries, deleted=True)

    @routes.post(
        "/v1/slots/{slot}/fork",
        summary="Copy a slot for another session",
        openapi_extra=takes(ForkRequest),
        responses=errors(400, 404, 413, 415),
    )
    async def fork_slot(tenant: Tenant, slot: str, body: JsonBody) -> SlotForked:
        source = SlotKey(tenant, slot_id(slot))
        target = SlotKey.for_session(tenant, parse(ForkRequest, body).session_id)
        if source == target:
            raise InputError("The session has this slot already.", param="session_id")
        n_entries = await asyncio.wrap_future(engine.call(lambda store: store.fork(source, target)))
        if not n_entries:
            raise no_slot(slot)
        return SlotForked(object="slot.forked", slot=str(target), source=slot, entries=n_entries)


def slot_id(text: str) -> CrossTurnSlotId:
    """The slot that a path names.

    Raises:
        NotFoundError: it is not a slot id.
    """
    if not re.fullmatch(r"[0-9a-f]{16}", text):
        raise no_slot(text)
    return CrossTurnSlotId(int(text, 16))


def no_slot(text: str) -> NotFoundError:
    """The error for a slot that the tenant does not have."""
    return NotFoundError(f"There is no slot '{text}'.", param="slot", code="slot_not_found")


def _slot_body(slot: SlotInfo) -> SlotBody:
    return SlotBody(
        object="slot",
        slot=str(slot.slot),
        tokens=slot.n_tokens,
        bytes=slot.n_bytes,
        entries=[_entry_body(entry) for entry in slot.entries],
    )


def _entry_body(entry: EntryInfo) -> EntryBody:
    return EntryBody(
        number=entry.number,
        tokens=entry.n_tokens,
        bytes=entry.n_bytes,
        checkpoints=list(entry.checkpoints),
        age_s=round(entry.age_s, 3),
        idle_s=round(entry.idle_s, 3),
        hits=entry.n_hits,
        running=entry.running,
        parent=None if entry.parent is None else f"{entry.parent.slot}/{entry.parent.number}",
    )


def _turn_body(turn: PastTurn) -> TurnBody:
    report = turn.report
    parted = report.divergence
    return TurnBody(
        id=turn.id,
        at=round(turn.at_unix_s, 3),
        mode=report.mode,
        prompt_tokens=report.prompt_tokens,
        reused_tokens=report.reused_tokens,
        read_again_tokens=report.shared_tokens - report.reused_tokens,
        new_tokens=report.prompt_tokens - report.shared_tokens,
        first_token_s=None if turn.first_token_s is None else round(turn.first_token_s, 3),
        divergence=None
        if parted is None
        else DivergenceBody(
            message=parted.message, role=parted.role, remembered=parted.kept, sent=parted.sent
        ),
        explanation=explain(report),
    )


def explain(report: PlanReport) -> str:
    """What happened and what to do about it, in sentences for the author of a client."""
    n_again = report.shared_tokens - report.reused_tokens
    if report.divergence is None:
        return report.reason if n_again == 0 else f"{report.reason} {_again(n_again)}"
    parted = report.divergence
    cost = _what_it_cost(report, n_again)
    sentences = [_what_changed(parted), cost, report.eviction, _advice(parted)]
    return " ".join(sentence for sentence in sentences if sentence)


def _what_changed(parted: Divergence) -> str:
    place = (
        f"message {parted.message} ({parted.role})" if parted.message >= 0 else "what precedes the messages"
    )
    kept, sent = _differing(parted.kept, parted.sent)
    return f"The client changed {place}: “{kept}” was remembered, “{sent}” was sent."


def _what_it_cost(report: PlanReport, n_again: int) -> str:
    n_new = report.prompt_tokens - report.shared_tokens
    if report.reused_tokens == 0:
        return f"No checkpoint lies before that point, so all {report.prompt_tokens} tokens were read."
    behind = f"The {n_new} tokens from there on were read"
    return f"{behind}, and {_again(n_again)[0].lower()}{_again(n_again)[1:]}" if n_again else f"{behind}."


def _again(n_again: int) -> str:
    plural = "" if n_again == 1 else "s"
    return f"{n_again} token{plural} before it again, from the nearest checkpoint."


def _advice(parted: Divergence) -> str:
    if parted.role == "system" or parted.message < 0:
        return "What changes on each turn (a date, a number) belongs at the end of the last user message."
    if parted.role == "assistant":
        return "A reply is reused best when it is sent back as it came, its reasoning_content included."
    if parted.role == "tool" and not parted.is_last:
        return "Earlier results of tools stay reusable when they are sent back unchanged."
    return ""


def _differing(kept: str, sent: str) -> tuple[str, str]:
    """Both texts, up to a little after the place from which they are the same again."""
    n_same = next((i for i, (a, b) in enumerate(zip(kept[::-1], sent[::-1], strict=False)) if a != b), 0)
    n_cut = max(0, n_same - _CONTEXT)
    return _short(kept[: len(kept) - n_cut]), _short(sent[: len(sent) - n_cut])


def _short(text: str) -> str:
    """``text`` on one line, shortened to what a person reads."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…"
