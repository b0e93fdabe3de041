"""OpenAI's Responses dialect: the routes at ``/v1/responses`` and below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from model.errors import InputError
from server.errors import NotFoundError
from server.http.dialect import Dialect, errors, streams, takes
from server.http.gateway import Gateway
from server.http.intake import Arrival, Tenant, arrives
from server.http.schema import parse
from server.responses.decode import Decoded, Sender, decode, top_logprobs_of
from server.responses.encoder import ReplyShape, ResponseEncoder, logprob_bodies
from server.responses.given_back import given_back
from server.responses.kept.records import Record
from server.responses.kept.store import Shelf, open_shelf
from server.responses.schema.replies import (
    DeletedResponse,
    InputTokens,
    ItemBody,
    ItemList,
    ResponseBody,
    ResponseEvent,
)
from server.responses.schema.requests import InputTokensRequest, ResponsesRequest
from server.turn.compose import ComposedTurn, compose, count_tokens

ENCRYPTED = "reasoning.encrypted_content"
PATH = "/v1/responses"
ResponseArrival = Annotated[Arrival, arrives("resp_")]
MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a response, ready to run."""

    request: ResponsesRequest
    decoded: Decoded
    turn: ComposedTurn
    shape: ReplyShape


def router(gateway: Gateway) -> APIRouter:
    """The endpoints of this dialect, over one shelf of kept responses."""
    routes = APIRouter(tags=["responses"], responses=errors(400, 401, 404, 413, 415, 500, 503))
    shelf = open_shelf(gateway.settings)
    gateway.on_close.append(shelf.store.close)

    @routes.post(
        PATH,
        summary="Answer a conversation given as items",
        openapi_extra=takes(ResponsesRequest),
        responses=streams(ResponseBody, ResponseEvent),
    )
    async def create_response(request: Request, arrival: ResponseArrival) -> Response:
        run = gateway.new_run(arrival.id)
        asked = await gateway.on_worker(_compose, arrival, gateway, shelf)

        def keep(body: ResponseBody) -> None:
            if asked.request.store is not False:
                gateway.later_on_worker(shelf.store.keep, _record(arrival, asked, body))

        encoder = ResponseEncoder(asked.shape, keep)
        return await gateway.answer(request, run, asked.turn, encoder, stream=bool(asked.request.stream))

    @routes.post(
        f"{PATH}/input_tokens",
        summary="Count the tokens of a prompt",
        openapi_extra=takes(InputTokensRequest),
        response_model=InputTokens,
    )
    async def count_input_tokens(arrival: ResponseArrival) -> Any:
        n_tokens = await gateway.on_worker(_count, arrival, gateway, shelf)
        return InputTokens(object="response.input_tokens", input_tokens=n_tokens)

    @routes.get(
        f"{PATH}/{{response_id}}", summary="Retrieve a response", responses={200: {"model": ResponseBody}}
    )
    async def get_response(tenant: Tenant, response_id: str, stream: str = "false") -> JSONResponse:
        if stream.lower() not in ("false", "0", ""):
            raise InputError("A completed response cannot be streamed again.", param="stream")
        record = _found(response_id, await gateway.on_worker(shelf.store.find, tenant, response_id))
        return JSONResponse(record.response)

    @routes.delete(f"{PATH}/{{response_id}}", summary="Delete a response")
    async def delete_response(tenant: Tenant, response_id: str) -> DeletedResponse:
        if not await gateway.on_worker(shelf.store.delete, tenant, response_id):
            _found(response_id, None)
        return DeletedResponse(id=response_id, object="response", deleted=True)

    @routes.get(f"{PATH}/{{response_id}}/input_items", summary="List the input items of a response")
    async def list_input_items(
        tenant: Tenant,
        response_id: str,
        limit: str = "20",
        order: str = "desc",
        after: str | None = None,
    ) -> ItemList:
        context = await gateway.on_worker(shelf.store.context, tenant, response_id)
        return page_of(_found(response_id, context), limit=limit, order=order, after=after)

    return routes


def _sender(arrival: Arrival) -> Sender:
    # codex names its thread in a header of its own, and in prompt_cache_key as well.
    return Sender(
        id=arrival.id,
        tenant=arrival.tenant,
        session=arrival.session(),
        fallback=arrival.headers.get("session-id") or None,
    )


def _compose(arrival: Arrival, gateway: Gateway, shelf: Shelf) -> Asked:
    """Parse, check and render a request, without touching the engine.

    Raises:
        InputError: the request cannot be done; names the field.
        NotFoundError: it asks for another model, or refers to something that is not kept.
    """
    request = parse(ResponsesRequest, arrival.body)
    decoded = decode(request, _sender(arrival), shelf)
    turn = compose(decoded.turn, gateway.served, gateway.settings)
    return Asked(request, decoded, turn, _shape(request, arrival, decoded, turn, gateway, shelf))


def _count(arrival: Arrival, gateway: Gateway, shelf: Shelf) -> int:
    decoded = decode(parse(InputTokensRequest, arrival.body), _sender(arrival), shelf)
    return count_tokens(decoded.turn, gateway.served, gateway.settings)


def _shape(
    request: ResponsesRequest,
    arrival: Arrival,
    decoded: Decoded,
    turn: ComposedTurn,
    gateway: Gateway,
    shelf: Shelf,
) -> ReplyShape:
    seal = partial(shelf.seal.close, tenant=arrival.tenant)
    logprobs = partial(logprob_bodies, token_bytes=gateway.served.tokens.token_bytes)
    return ReplyShape(
        fields=given_back(
            request,
            response_id=arrival.id,
            created=arrival.created,
            model=gateway.served.name,
            sampling=turn.generation.sampling,
        ),
        toolbox=decoded.toolbox,
        as_summary=request.reasoning is not None and request.reasoning.told_summary is not None,
        seal=seal if ENCRYPTED in (request.include or ()) else None,
        logprobs=None if top_logprobs_of(request) is None else logprobs,
    )


def _record(arrival: Arrival, asked: Asked, body: ResponseBody) -> Record:
    return Record(
        id=arrival.id,
        tenant=arrival.tenant,
        session=asked.decoded.turn.session,
        previous=asked.request.previous_response_id,
        items=asked.decoded.items,
        response=dict(body),
    )


def _found(response_id: str, kept: Any) -> Any:
    """``kept``, or NotFoundError if it is None."""
    if kept is None:
        raise NotFoundError(
            f"Response with id '{response_id}' not found.", param="response_id", code="response_not_found"
        )
    return kept


def page_of(items: Sequence[ItemBody], *, limit: str, order: str, after: str | None) -> ItemList:
    """The ``limit`` items after the one whose id is ``after``; the parameters are strings of a query.

    Args:
        items: oldest first; ``order`` is that of the list.

    Raises:
        InputError: ``limit`` is not a number from 1 to :data:`MAX_LIMIT`, or ``order`` neither asc nor desc.
        NotFoundError: there is no item ``after``.
    """
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_LIMIT:
        raise InputError(
            f"'limit' must be a number from 1 to {MAX_LIMIT}.", param="limit", code="invalid_value"
        )
    if order not in ("asc", "desc"):
        raise InputError("'order' must be asc or desc.", param="order", code="invalid_value")
    listed = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        place = next((i for i, item in enumerate(listed) if item["id"] == after), None)
        if place is None:
            raise NotFoundError(f"Item with id '{after}' not found.", param="after", code="item_not_found")
        listed = listed[place + 1 :]
    page = listed[: int(limit)]
    return ItemList(
        object="list",
        data=page,
        first_id=page[0]["id"] if page else "",
        last_id=page[-1]["id"] if page else "",
        has_more=len(listed) > len(page),
    )


RESPONSES = Dialect(routers=(router,), bodies=(ResponsesRequest, InputTokensRequest))
