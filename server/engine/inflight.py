"""The requests in flight: where each of them is, how it ends, and what is remembered of it.

A request waits, then its prompt is prefilled, then its replies are decoded. It can be cancelled or fail in
any of these places. What was fed until then is remembered, unless the state is suspect after a fault.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from cache.entry import RunningEntry
from cache.store import Store
from model.errors import GrammarError, InputError
from model.text.chat import RenderedPrompt
from server.client import EngineStats
from server.engine.admission import RETRY_AFTER_S, Admission, Ticket
from server.engine.decode import Decoder
from server.engine.prefill import Prefiller
from server.engine.reply import Outbox, Reply
from server.events import Failed, Prompted, WarmRequest

log = logging.getLogger("crossturn.engine")


@dataclass
class Counters:
    """Totals since the start, in tokens unless the name says otherwise."""

    n_steps: int = 0
    n_prompt: int = 0
    n_reused: int = 0
    n_prefilled: int = 0
    n_read_ahead: int = 0
    n_generated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0


class InFlight:
    """Finds requests, takes them out of their places, and ends them.

    Args:
        store: remembers their conversations.
        admission, prefiller, decoder: the places, in the order in which a request passes through them.
        outbox: emits their events.

    Attributes:
        counters: totals over all requests.
    """

    def __init__(
        self, store: Store, admission: Admission, prefiller: Prefiller, decoder: Decoder, outbox: Outbox
    ) -> None:
        self._store = store
        self._admission = admission
        self._prefiller = prefiller
        self._decoder = decoder
        self._outbox = outbox
        self.counters = Counters()

    @property
    def tickets(self) -> list[Ticket]:
        """All requests, each once."""
        return [*self._admission.line, *self._prefiller.tickets, *self._decoder.tickets]

    def __bool__(self) -> bool:
        """Whether there is any request."""
        return bool(self._admission.line or self._decoder.replies or self._prefiller.tickets)

    def stats(self) -> EngineStats:
        """A snapshot; may be called from any thread, for it reads once whatever changes meanwhile."""
        counters = self.counters
        running = {id(ticket) for ticket in (*self._decoder.tickets, *self._prefiller.tickets)}
        return EngineStats(
            n_steps=counters.n_steps,
            n_running=len(running),
            n_waiting=len(self._admission.line),
            n_prompt_tokens=counters.n_prompt,
            n_reused_tokens=counters.n_reused,
            n_prefilled_tokens=counters.n_prefilled,
            n_read_ahead_tokens=counters.n_read_ahead,
            n_generated_tokens=counters.n_generated,
            n_drafted_tokens=counters.n_drafted,
            n_accepted_tokens=counters.n_accepted,
        )

    # -- ends -------------------------------------------------------------------------------------

    def keep(self, running: RunningEntry) -> None:
        """Save a conversation as far as it is fed; if that fails, drop it."""
        try:
            self._store.save(running)
        except BaseException as fault:
            log.error("a conversation of slot %s could not be kept", running.slot, exc_info=fault)
            self._store.drop(running)

    def leave(self, reply: Reply) -> None:
        """Save the conversation of a reply that has left the batch, as far as its state represents it."""
        if reply.index > 0:
            self._store.drop(reply.running)
            return
        self.keep(reply.running)
        if reply.reader.stopped and len(reply.running) < reply.n_kept:
            # The tokens between that state and the stop string are fed again in idle time.
            ids = [*reply.request.prompt.ids.tolist(), *reply.token_ids][: reply.n_kept]
            prompt = RenderedPrompt(np.array(ids, np.uint32))
            self._admission.add_ahead(WarmRequest(reply.request.id, reply.request.slot, prompt))

    def stop_reading_ahead(self) -> None:
        """Remove the prompts that are read ahead, and keep what is fed of them."""
        for prefill in [prefill for prefill in self._prefiller.prefills if prefill.ticket is None]:
            self.keep(self._prefiller.leave(prefill).running)

    def end(self, ticket: Ticket, failure: Failed) -> None:
        """Emit ``failure`` as the last event of a request, unless it has had its last event."""
        if not ticket.is_over:
            ticket.is_over = True
            self._outbox.send(ticket.emit, failure)

    def cancel(self, request_id: str) -> None:
        """End a request where it stands and keep the work done; an unknown id is ignored."""
        for ticket in self.tickets:
            if ticket.request.id == request_id:
                self._withdraw(ticket)
                self.end(ticket, Failed("The request was cancelled.", "cancelled"))

    def _withdraw(self, ticket: Ticket) -> None:
        """Remove a request from wherever it is, and keep the work done for it."""
        if ticket in self._admission.line:
            self._admission.line.remove(ticket)
        for prefill in [prefill for prefill in self._prefiller.prefills if prefill.ticket is ticket]:
            self.keep(self._prefiller.leave(prefill).running)
        for reply in [reply for reply in self._decoder.replies if reply.siblings.ticket is ticket]:
            self.leave(self._decoder.leave(reply))
            if reply.siblings.base is not None:
                self._store.drop(reply.siblings.base)
                reply.siblings.base = None

    # -- faults -----------------------------------------------------------------------------------

    def fail(self, ticket: Ticket, fault: BaseException) -> bool:
        """End a request because of ``fault``. Entries that the fault has touched are dropped; all else goes
        on.

        Returns:
            whether to begin the request once more, because memory ran out and some is free now; if so, it has
            not been ended.
        """
        log.error("request %s failed", ticket.request.id, exc_info=fault)
        self._outbox.flush()
        self._withdraw(ticket)
        self._clean_up(fault)
        if is_out_of_memory(fault) and ticket.n_starts == 1 and not (ticket.is_answered or ticket.is_over):
            return True
        mx.clear_cache()
        self.end(ticket, failure_of(fault))
        return False

    def fail_ahead(self, request: Prompted, fault: BaseException) -> None:
        """Give up a prompt that was read ahead, because of ``fault``."""
        log.error("reading ahead of %s failed", request.id, exc_info=fault)
        self._clean_up(fault)

    def abandon(self, fault: BaseException) -> None:
        """End all requests because of ``fault``. Sound entries at rest stay."""
        tickets = self.tickets
        self._admission.clear()
        self._prefiller.abandon()
        self._decoder.abandon()
        self._store.forget_unsound()
        for ticket in tickets:
            self.end(ticket, failure_of(fault))

    def _clean_up(self, fault: BaseException) -> None:
        """Drop the running entries that nothing feeds any more; if memory ran out, also half of what is
        held."""
        self._store.drop_all_but([*self._prefiller.entries, *self._decoder.entries])
        if is_out_of_memory(fault):
            self._store.make_room(self._store.n_bytes // 2)
            mx.clear_cache()


_SIGNS = ("out of memory", "malloc", "bad_alloc", "unable to allocate", "attempting to allocate")
"""Found in the messages of MLX's allocators, which raise no exception type of their own."""


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether an allocation failed."""
    said = str(fault).lower()
    return isinstance(fault, MemoryError) or any(sign in said for sign in _SIGNS)


def failure_of(fault: BaseException) -> Failed:
    """The event that ends a request. Details of our own faults are for the log, not for the client."""
    if isinstance(fault, InputError):
        return Failed(fault.message, "invalid", param=fault.param)
    if isinstance(fault, GrammarError):
        return Failed(f"The reply can no longer match its schema: {fault}", "internal")
    if is_out_of_memory(fault):
        return Failed("The server ran out of memory.", "overloaded", retry_after_s=RETRY_AFTER_S)
    return Failed("The reply could not be generated; the server's log says why.", "internal")
