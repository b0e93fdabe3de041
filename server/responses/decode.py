"""Decodes a body of this dialect into a turn and into the items that are kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from model.errors import InputError
from server.errors import NotFoundError
from server.responses.kept.items import item_of, kept
from server.responses.kept.seal import Seal
from server.responses.kept.store import ResponseStore, Shelf
from server.responses.messages import Placed, conversation_of
from server.responses.schema.items import (
    AdditionalToolsItem,
    Item,
    ItemReference,
    MessageItem,
    ToolSearchOutputItem,
)
from server.responses.schema.replies import ItemBody
from server.responses.schema.requests import JsonObject, JsonSchema, PromptFields, ResponsesRequest
from server.responses.toolbox import Toolbox
from server.turn.turn import ResponseFormat, Sampling, Thinking, Turn

NAMES = {
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "thinking": "reasoning",
}
"""This dialect's parameters for the attributes of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Where a request comes from.

    Attributes:
        id: of the request.
        session: the session that its headers name; it takes precedence over the body's.
        fallback: a session that is used if neither the headers nor the body name one.
    """

    id: str
    tenant: str | None = None
    session: str | None = None
    fallback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A body of this dialect.

    Attributes:
        items: the request's own items, as they are kept.
        toolbox: its tools.
    """

    turn: Turn
    items: list[ItemBody]
    toolbox: Toolbox


def decode(fields: PromptFields, sender: Sender, shelf: Shelf) -> Decoded:
    """Read the fields of a request. Looks responses and items up in the shelf, which it does not change.

    Raises:
        InputError: fields contradict each other, or an item cannot become a message.
        NotFoundError: the previous response, or an item that the request refers to, is not kept here.
    """
    earlier = _earlier(fields.previous_response_id, sender.tenant, shelf.store)
    placed = _placed(fields, sender.tenant, shelf.store)
    if not earlier and not placed:
        raise InputError("'input' must hold at least one item.", param="input")
    everything = [*earlier, *placed]
    told = conversation_of(everything, fields.instructions, partial(_open, shelf.seal, sender.tenant))
    toolbox = _toolbox(fields, everything)
    names = {**NAMES, **told.names, **toolbox.names, "messages": "input"}
    request = fields if isinstance(fields, ResponsesRequest) else ResponsesRequest()
    turn = Turn(
        id=sender.id,
        tenant=sender.tenant,
        session=_session(request, sender, shelf),
        model=fields.model,
        messages=told.messages,
        tools=toolbox.definitions,
        late_tools=toolbox.late,
        forms=toolbox.forms,
        tool_choice=toolbox.choice(fields.tool_choice, parallel=fields.parallel_tool_calls is not False),
        response_format=_format(fields),
        thinking=_thinking(fields, request),
        sampling=_sampling(request),
        stop=[request.stop] if isinstance(request.stop, str) else request.stop or (),
        top_logprobs=top_logprobs_of(request),
        max_tokens=request.max_output_tokens,
        chat_template_kwargs=_template_kwargs(fields),
        user=request.safety_identifier or request.user,
        names=names,
    )
    return Decoded(turn=turn, items=[kept(one.item) for one in placed], toolbox=toolbox)


def top_logprobs_of(request: ResponsesRequest) -> int | None:
    """How many alternatives are wanted for each token of the text; None for no log probabilities."""
    if "message.output_text.logprobs" in (request.include or ()):
        return request.top_logprobs or 0
    return request.top_logprobs or None


def _open(seal: Seal, tenant: str | None, blob: str) -> str | None:
    return seal.open(blob, tenant)


def _earlier(previous: str | None, tenant: str | None, store: ResponseStore) -> list[Placed]:
    """The items of the previous response, and of all responses before it."""
    if previous is None:
        return []
    record = store.find(tenant, previous)
    context = store.context(tenant, previous)
    if record is None or context is None:
        raise NotFoundError(
            f"Previous response with id '{previous}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return [Placed(item_of(body), "previous_response_id") for body in (*context, *record.output)]


def _placed(fields: PromptFields, tenant: str | None, store: ResponseStore) -> list[Placed]:
    """The request's own items; references are replaced by the items that they name."""
    if fields.input is None:
        return []
    if isinstance(fields.input, str):
        return [Placed(MessageItem(role="user", content=fields.input), "input")]
    placed: list[Placed] = []
    for i, item in enumerate(fields.input):
        where = f"input[{i}]"
        placed.append(
            Placed(_referred(item, where, tenant, store) if isinstance(item, ItemReference) else item, where)
        )
    return placed


def _referred(reference: ItemReference, where: str, tenant: str | None, store: ResponseStore) -> Item:
    body = store.item(tenant, reference.id)
    if body is None:
        raise NotFoundError(
            f"Item with id '{reference.id}' not found. Items are not kept when 'store' is false.",
            param=f"{where}.id",
            code="item_not_found",
        )
    return item_of(body)


def _toolbox(fields: PromptFields, placed: Sequence[Placed]) -> Toolbox:
    toolbox = Toolbox()
    toolbox.add(fields.tools or (), "tools")
    has_begun = False
    for item, where in placed:
        has_begun = has_begun or (isinstance(item, MessageItem) and item.role == "user")
        if isinstance(item, AdditionalToolsItem | ToolSearchOutputItem):
            is_late = has_begun or isinstance(item, ToolSearchOutputItem)
            toolbox.add(item.tools, f"{where}.tools", late=is_late)
    return toolbox


def _session(request: ResponsesRequest, sender: Sender, shelf: Shelf) -> str | None:
    """The session that the request names, or else that of the previous response."""
    named = (request.metadata or {}).get("session_id")
    keys = (
        sender.session,
        request.prompt_cache_key,
        named if isinstance(named, str) else None,
        sender.fallback,
    )
    session = next((key for key in keys if key), None)
    if session is not None or request.previous_response_id is None:
        return session
    record = shelf.store.find(sender.tenant, request.previous_response_id)
    return None if record is None else record.session


def _format(fields: PromptFields) -> ResponseFormat | None:
    match fields.text and fields.text.format:
        case JsonSchema() as wanted:
            return ResponseFormat(
                schema=wanted.schema_,
                name=wanted.name,
                description=wanted.description,
                strict=wanted.strict,
            )
        case JsonObject():
            return ResponseFormat(schema={"type": "object"})
        case _:
            return None


def _thinking(fields: PromptFields, request: ResponsesRequest) -> Thinking:
    effort = None if fields.reasoning is None else fields.reasoning.effort
    enabled = request.enable_thinking
    if enabled is not None and effort is not None and enabled != (effort != "none"):
        raise InputError(
            "These contradict each other: reasoning.effort, enable_thinking.",
            param="enable_thinking",
            code="invalid_value",
        )
    return Thinking(enabled=enabled, effort=effort, budget=request.thinking_budget)


def _sampling(request: ResponsesRequest) -> Sampling:
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
    )


def _template_kwargs(fields: PromptFields) -> Mapping[str, object]:
    """``reasoning.context``, for templates that can keep earlier thoughts, and ``chat_template_kwargs``."""
    context = None if fields.reasoning is None else fields.reasoning.context
    keeps = {"all_turns": True, "current_turn": False}.get(context or "")
    kept_thoughts = {} if keeps is None else {"preserve_thinking": keeps}
    return {**kept_thoughts, **(fields.chat_template_kwargs or {})}
