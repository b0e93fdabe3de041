"""The algorithm of the engine: admit, prefill, decode, remember; one small step at a time.

Everything here runs on one thread, without waiting: :meth:`EngineLoop.step` does a bounded amount
of work and returns. ``server/engine/thread.py`` calls it from the engine thread; tests call it directly.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from cache.entry import RunningEntry
from cache.planner import TokenIds
from cache.store import Store
from model.forward import Forward
from model.text.chat import RenderedPrompt
from model.text.grammar.masks import GrammarTable
from model.text.tokenizer import TextTokenizer
from server.client import EngineStats
from server.engine.admission import Admission, LoopOptions
from server.engine.decode import Decoder
from server.engine.drafting import Drafting
from server.engine.faults import failure_of, is_out_of_memory, make_room
from server.engine.planning import Planner
from server.engine.prefill import Prefill, Prefiller
from server.engine.reply import Reply, ReplyMaker, Siblings
from server.engine.ticket import Outbox, Prompted, Ticket
from server.events import Emit, Failed, GenerationRequest, Planned, WarmRequest

log = logging.getLogger("crossturn.engine")


PREFILL_S = 1.0
"""About what one step of a prefill takes: a client that leaves is heard after it."""
SHARED_PREFILL_S = 0.25
"""The same beside replies, which pause for it."""


@dataclass
class Counters:
    """Totals since the start, in tokens unless the name says otherwise."""

    n_steps: int = 0
    n_requests: int = 0
    n_prompt: int = 0
    n_reused: int = 0
    n_prefilled: int = 0
    n_read_ahead: int = 0
    n_generated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0


class EngineLoop:
    """Owns the requests under way. The states themselves belong to ``store`` and the decode batch.

    Args:
        forward: the model.
        tokenizer: turns reply tokens into text.
        store: what is remembered of earlier prompts.
        stop_ids: token ids that end a reply.
        grammars: gives the table of grammars when one is wanted; None makes it then.
        clock: seconds, monotonic.
        drafting: how replies are guessed ahead, where the options want that.
    """

    def __init__(
        self,
        forward: Forward,
        tokenizer: TextTokenizer,
        store: Store,
        *,
        stop_ids: frozenset[int],
        options: LoopOptions | None = None,
        grammars: Callable[[], GrammarTable] | None = None,
        clock: Callable[[], float] = time.monotonic,
        drafting: Drafting | None = None,
    ) -> None:
        drafting = drafting or Drafting()
        options = options or LoopOptions()
        vocab_size = forward.config.vocab_size
        self._forward = forward
        self._store = store
        self._options = options
        self._clock = clock
        self._outbox = Outbox(options.stream_interval_seconds, clock)
        self._admission = Admission(options, store, self.state_bytes, clock)
        self._planner = Planner(store, tokenizer, stop_ids, keeps_fed_ids=options.keep_fed_ids)
        self._prefiller = Prefiller(forward)
        self._decoder = Decoder(forward, stop_ids, self._outbox, drafting.depth)
        grammars = grammars or functools.cache(functools.partial(GrammarTable, tokenizer, vocab_size))
        self._maker = ReplyMaker(
            tokenizer, vocab_size, stop_ids, grammars, drafting if options.drafts else None
        )
        self._ahead: deque[WarmRequest] = deque()
        self._in_hand: list[Prefill] = []  # the last step fed them, and they have not gone on from there
        self.counters = Counters()

    # -- what may be asked, between two steps -----------------------------------------------------

    @property
    def store(self) -> Store:
        return self._store

    def state_bytes(self, n_tokens: int) -> int:
        """Bytes of the state of a conversation of ``n_tokens``."""
        return self._forward.state_bytes(n_tokens)

    @property
    def has_requests(self) -> bool:
        """Whether a client waits for anything."""
        return bool(self._admission.line or self._decoder.replies or self._prefiller.tickets)

    @property
    def has_work(self) -> bool:
        is_ahead = bool(self._ahead or self._prefiller.prefills)
        return self.has_requests or is_ahead or self._store.disk.is_behind

    def stats(self) -> EngineStats:
        """May be asked for from any thread: whatever changes meanwhile is read once."""
        counters = self.counters
        running = {id(reply.siblings.ticket) for reply in self._decoder.replies}
        running.update(id(ticket) for ticket in self._prefiller.tickets)
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

    # -- what clients ask -------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """Queue ``request``, or refuse it; ``emit`` takes its events."""
        ticket = Ticket(request, emit, self._clock())
        refusal = self._admission.add(ticket)
        if refusal is not None:
            self._end(ticket, refusal)

    def read_ahead(self, request: WarmRequest) -> None:
        """Prefill ``request`` when idle. A later one for the same slot replaces an earlier one."""
        if self._options.idle_prefill:
            self._queue_ahead(request)

    def cancel(self, request_id: str) -> None:
        """End a request where it stands and keep the work done; unknown ids are ignored."""
        for ticket in self._tickets():
            if ticket.request.id == request_id:
                self._withdraw(ticket)
                self._end(ticket, Failed("the request was cancelled", "cancelled"))

    def cancel_all(self) -> None:
        """End everything a client waits for, as at shutdown."""
        for ticket in self._tickets():
            self.cancel(ticket.request.id)

    def recover(self, fault: BaseException) -> None:
        """After a fault of the loop itself: end what runs. What is at rest and sound stays."""
        tickets = self._tickets()
        self._admission.line.clear()
        self._ahead.clear()
        self._in_hand.clear()
        self._prefiller = Prefiller(self._forward)
        self._decoder.abandon()
        self._store.forget_unsound()
        for ticket in tickets:
            self._end(ticket, failure_of(fault))

    # -- the algorithm ----------------------------------------------------------------------------

    def step(self) -> bool:
        """Admit what fits, prefill one chunk of a prompt, decode one token of every reply; when there is
        nothing of that, write one file of the cache folder.

        Returns:
            whether there was anything to do.
        """
        self._admit()
        has_prefilled = self._prefill()
        has_decoded = self._decode()
        if has_prefilled or has_decoded:
            self.counters.n_steps += 1
            return True
        if self._options.checks_store:
            self._store.check()
        return self._store.disk.step()

    def _admit(self) -> None:
        """Begin the next prompt: that of the request whose turn it is, else one to read ahead."""
        for expired in self._admission.take_expired():
            self._end(expired, self._admission.too_late)
        if self._admission.line:
            for prefill in [prefill for prefill in self._prefiller.prefills if prefill.ticket is None]:
                self._keep(self._prefiller.leave(prefill).running)
            decoding = [reply.siblings.ticket for reply in self._decoder.replies]
            while ticket := self._admission.take(decoding, self._prefiller, self._planner.n_suffix):
                self._begin(ticket)
        elif self._ahead and not self._prefiller.prefills and not self._decoder.replies:
            self._begin_ahead(self._ahead.popleft())

    def _begin(self, ticket: Ticket) -> None:
        """Plan a client's prompt and take the state that the plan names."""
        ticket.n_starts += 1
        try:
            self._outbox.flush()  # what the plan names may have to be read from disk
            grammar = self._maker.start_grammar(ticket.request.reply)
            plan = self._planner.plan(ticket.request)
            ticket.request = replace(ticket.request, prompt=plan.prompt)
            running = self._store.take(plan.choice)
        except BaseException as fault:
            self._fail(ticket, fault)
            return
        self._prefiller.join(
            Prefill(
                ticket.request,
                running,
                plan.choice.captures,
                ticket=ticket,
                grammar=grammar,
                quotes=(*plan.quotes, *_texts(ticket.request.prediction)),
                began_at=self._clock(),
            )
        )
        if not ticket.is_planned:
            ticket.is_planned = True
            self.counters.n_requests += 1
            self.counters.n_prompt += plan.report.prompt_tokens
            self.counters.n_reused += plan.report.reused_tokens
            self._outbox.tell(ticket.emit, Planned(plan.report))

    def _begin_ahead(self, request: WarmRequest) -> None:
        try:
            plan = self._planner.plan(request)
            if not plan.choice.is_affordable:
                return
            running = self._store.take(plan.choice)
            running.ahead_from = len(running)
        except BaseException as fault:
            self._fail_ahead(request, fault)
            return
        self._prefiller.join(Prefill(replace(request, prompt=plan.prompt), running, plan.choice.captures))

    def _prefill(self) -> bool:
        """Feed a chunk of a prompt; one that is read is decoded from here on, or rests."""
        if not self._prefiller.prefills:
            return False
        self._outbox.flush()
        self._in_hand = self._prefiller.step(self.prefill_tokens)
        while self._in_hand:
            prefill = self._in_hand.pop(0)
            self.counters.n_prefilled += prefill.n_last
            if prefill.ticket is None:
                self._go_on_ahead(prefill)
            else:
                self._go_on(prefill, prefill.ticket)
        self._store.enforce()
        return True

    @property
    def prefill_tokens(self) -> int:
        """Tokens of a prompt that one step reads at most."""
        if not self._decoder.replies:
            return self._options.prefill_tokens or self._forward.tokens_within(PREFILL_S)
        return self._options.shared_prefill_tokens or self._forward.tokens_within(SHARED_PREFILL_S)

    def _go_on(self, prefill: Prefill, ticket: Ticket) -> None:
        """A client's prompt was read on."""
        self._admission.allowances.charge(ticket.request.slot.tenant, prefill.n_last)
        if prefill.fault is not None:
            self._fail(ticket, prefill.fault)
            return
        if ticket.request.tells_prefill:
            self._outbox.tell(ticket.emit, prefill.progress(self._clock()))
        if prefill.is_over:
            try:
                self._begin_replies(prefill, ticket)
            except BaseException as fault:
                if not prefill.running.is_lent:
                    self._keep(prefill.running)  # the prompt was read, whatever failed after that
                self._fail(ticket, fault)

    def _go_on_ahead(self, prefill: Prefill) -> None:
        """What is known of the next prompt was read on."""
        self.counters.n_read_ahead += prefill.n_last
        if prefill.fault is not None:
            self._fail_ahead(prefill.request, prefill.fault)
        elif prefill.is_over:
            self._keep(prefill.running)

    def _begin_replies(self, prefill: Prefill, ticket: Ticket) -> None:
        """From one prompt to its replies; all but the first get a copy of the state."""
        assert prefill.logits is not None
        running, n_first = prefill.running, self._admission.width(ticket.request)
        siblings = Siblings(ticket, None, prefill.logits, prefill.grammar, prefill.quotes)
        others = [self._store.branch(running) for _ in range(n_first - 1)]
        if n_first < ticket.request.n_replies:
            siblings.base = self._store.branch(running)
        for entry in (running, *others):
            self._begin_reply(siblings, entry)

    def _begin_reply(self, siblings: Siblings, running: RunningEntry) -> None:
        reply = self._maker.make(siblings, running)
        self._decoder.join(reply, siblings.logits)
        siblings.n_begun += 1

    def _decode(self) -> bool:
        """One token for every reply; those that are over are remembered and told so."""
        replies = self._decoder.replies
        if not replies:
            return False
        before = [(reply, reply.n_tokens) for reply in replies]
        try:
            over = self._decoder.step()
        except BaseException as fault:
            self._decoder.abandon()
            for touched in _tickets_of(replies):
                self._fail(touched, fault)
            return True
        self._count_generated(before)
        for reply in over:  # first of all, for what fails takes along what nobody has kept
            self._leave(reply)
        for reply in sorted(over, key=lambda reply: reply.fault is not None):
            self._finish(reply)
        if self._decoder.has_grown:
            self._store.enforce()
        return True

    def _count_generated(self, before: Iterable[tuple[Reply, int]]) -> None:
        for reply, n_before in before:
            n_tokens = reply.n_tokens - n_before
            self.counters.n_generated += n_tokens
            self._admission.allowances.charge(reply.request.slot.tenant, n_tokens)

    # -- the ends of a reply and of a request -----------------------------------------------------

    def _finish(self, reply: Reply) -> None:
        """A reply that has left the batch is over: so the client is told, and the next one begins."""
        siblings, ticket = reply.siblings, reply.siblings.ticket
        if reply.speculation is not None:
            self.counters.n_drafted += reply.speculation.n_drafted
            self.counters.n_accepted += reply.speculation.n_accepted
        if reply.fault is not None:
            self._fail(ticket, reply.fault)
        elif not ticket.is_over:
            self._outbox.tell(ticket.emit, reply.finished())
            if siblings.base is not None:
                try:
                    self._begin_next(siblings, siblings.base)
                except BaseException as fault:
                    self._fail(ticket, fault)

    def _begin_next(self, siblings: Siblings, base: RunningEntry) -> None:
        """Begin a reply for which there was no place before; the last one takes the prompt's entry itself."""
        if siblings.n_to_come == 1:
            siblings.base = None
            self._begin_reply(siblings, base)
        else:
            self._begin_reply(siblings, self._store.branch(base))

    def _leave(self, reply: Reply) -> None:
        """Remember a reply that has left the batch, at the boundary its state stands for."""
        if reply.index > 0:
            self._store.drop(reply.running)
            return
        self._keep(reply.running)
        if reply.reader.stopped and len(reply.running) < reply.n_kept:
            # Its last tokens before the cut are fed again when there is time.
            ids = [*reply.request.prompt.ids.tolist(), *reply.token_ids][: reply.n_kept]
            prompt = RenderedPrompt(np.array(ids, np.uint32))
            self._queue_ahead(WarmRequest(reply.request.id, reply.request.slot, prompt))

    def _queue_ahead(self, request: WarmRequest) -> None:
        self._ahead = deque(other for other in self._ahead if other.slot != request.slot)
        self._ahead.append(request)

    def _keep(self, running: RunningEntry) -> None:
        """Remember a conversation as far as it is fed; what cannot be remembered is forgotten."""
        try:
            self._store.save(running)
        except BaseException as fault:
            log.error("a conversation of slot %s could not be kept", running.slot, exc_info=fault)
            self._store.drop(running)

    def _withdraw(self, ticket: Ticket) -> None:
        """Take a request out wherever it is; the work done for it is kept."""
        if ticket in self._admission.line:
            self._admission.line.remove(ticket)
        for prefill in [prefill for prefill in self._prefiller.prefills if prefill.ticket is ticket]:
            self._keep(self._prefiller.leave(prefill).running)
        for reply in [reply for reply in self._decoder.replies if reply.siblings.ticket is ticket]:
            self._leave(self._decoder.leave(reply))
            if reply.siblings.base is not None:
                self._store.drop(reply.siblings.base)
                reply.siblings.base = None

    def _end(self, ticket: Ticket, failure: Failed) -> None:
        """Tell a client that its request has ended early; once, whatever fails after that."""
        if not ticket.is_over:
            ticket.is_over = True
            self._outbox.tell(ticket.emit, failure)

    def _fail(self, ticket: Ticket, fault: BaseException) -> None:
        """``fault`` ends a request, or has it begun once more where memory ran out. What the fault has
        touched is not remembered; everything else goes on."""
        log.error("request %s failed", ticket.request.id, exc_info=fault)
        has_replies = any(reply.siblings.ticket is ticket for reply in self._decoder.replies)
        self._withdraw(ticket)
        self._store.drop_all_but(self._fed_entries())
        if is_out_of_memory(fault):
            make_room(self._store)
            if ticket.n_starts == 1 and not has_replies and not ticket.is_over:
                self._begin(ticket)
                return
        mx.clear_cache()
        self._end(ticket, failure_of(fault))

    def _fail_ahead(self, request: Prompted, fault: BaseException) -> None:
        """Nobody waits for what was read ahead."""
        log.error("reading ahead of %s failed", request.id, exc_info=fault)
        self._store.drop_all_but(self._fed_entries())
        if is_out_of_memory(fault):
            make_room(self._store)

    def _fed_entries(self) -> list[RunningEntry]:
        """Every entry that somebody feeds, or will."""
        prefilled = [prefill.running for prefill in (*self._prefiller.prefills, *self._in_hand)]
        decoded = [reply.running for reply in self._decoder.replies]
        bases = [reply.siblings.base for reply in self._decoder.replies]
        return [*prefilled, *decoded, *(base for base in bases if base is not None)]

    def _tickets(self) -> list[Ticket]:
        """Each request that a client waits for, once."""
        return [*self._admission.line, *self._prefiller.tickets, *_tickets_of(self._decoder.replies)]


def _texts(text: TokenIds | None) -> tuple[TokenIds, ...]:
    return () if text is None else (text,)


def _tickets_of(replies: Iterable[Reply]) -> list[Ticket]:
    """The requests that ``replies`` answer, each once."""
    return list(dict.fromkeys(reply.siblings.ticket for reply in replies))
