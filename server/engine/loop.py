"""The algorithm of the engine: admit, prefill, decode, remember; one small step at a time.

Everything here runs on one thread and never blocks: :meth:`EngineLoop.step` does a bounded amount of work and
returns. ``server/engine/thread.py`` calls it on the engine thread; tests call it directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cache.entry import RunningEntry
from cache.store import Store
from model.forward import Forward
from model.text.tokenizer import TextTokenizer
from server.client import EngineStats
from server.engine.admission import Admission, LoopOptions, Ticket
from server.engine.decode import Decoder
from server.engine.drafting import Drafting
from server.engine.inflight import InFlight
from server.engine.planning import Planner
from server.engine.prefill import Prefill, Prefiller
from server.engine.reply import Grammars, Outbox, Reply, ReplyMaker, Siblings, tickets_of
from server.events import Emit, GenerationRequest, Planned, PlanReport, WarmRequest

PREFILL_S = 1.0
"""About how long a prefill step takes: a client that disconnects is noticed after it."""
SHARED_PREFILL_S = 0.25
"""The same while replies are being decoded, which pause for it."""


class EngineLoop:
    """Runs requests from their arrival to their end.

    Args:
        forward: the model.
        tokenizer: turns reply tokens into text.
        store: remembers conversations.
        stop_ids: token ids that end a reply.
        grammars: returns the table of grammars when one is needed; None builds it then.
        clock: seconds, monotonic.
        drafting: how replies are drafted, if the options allow drafts.
    """

    def __init__(
        self,
        forward: Forward,
        tokenizer: TextTokenizer,
        store: Store,
        *,
        stop_ids: frozenset[int],
        options: LoopOptions | None = None,
        grammars: Grammars | None = None,
        clock: Callable[[], float] = time.monotonic,
        drafting: Drafting | None = None,
    ) -> None:
        options, drafting = options or LoopOptions(), drafting or Drafting()
        self.forward = forward
        self.store = store
        self._options = options
        self._clock = clock
        self._outbox = Outbox(options.stream_interval_seconds, clock)
        self._admission = Admission(options, store, forward.state_bytes, clock)
        self._planner = Planner(store, tokenizer, stop_ids, keeps_fed_ids=options.keep_fed_ids)
        self._prefiller = Prefiller(forward)
        self._decoder = Decoder(forward, stop_ids, self._outbox, drafting.depth)
        self._maker = ReplyMaker(
            tokenizer,
            forward.config.vocab_size,
            stop_ids,
            grammars,
            drafting if options.drafts else None,
            fuses_sampling=forward.fuses_sampling,
        )
        self._in_flight = InFlight(store, self._admission, self._prefiller, self._decoder, self._outbox)
        self.counters = self._in_flight.counters

    # -- requests and questions, between two steps ------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """Whether a client waits for anything."""
        return bool(self._in_flight)

    @property
    def has_work(self) -> bool:
        is_ahead = self._admission.has_ahead or bool(self._prefiller.prefills)
        return self.has_requests or is_ahead or self.store.disk.is_behind

    def stats(self) -> EngineStats:
        """May be asked for from any thread."""
        return self._in_flight.stats()

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """Queue ``request``, or refuse it; ``emit`` takes its events."""
        ticket = Ticket(request, emit, self._clock())
        try:
            refusal = self._admission.add(ticket)
        except BaseException as fault:  # a client would wait for ever otherwise
            self._fail(ticket, fault)
            return
        if refusal is not None:
            self._in_flight.end(ticket, refusal)

    def read_ahead(self, request: WarmRequest) -> None:
        """Prefill ``request`` when idle; it replaces an earlier one for the same slot."""
        if self._options.idle_prefill:
            self._admission.add_ahead(request)

    def cancel(self, request_id: str) -> None:
        """End a request where it stands and keep the work done; an unknown id is ignored."""
        self._in_flight.cancel(request_id)

    def cancel_all(self) -> None:
        """End every request, as at shutdown."""
        for ticket in self._in_flight.tickets:
            self.cancel(ticket.request.id)

    def recover(self, fault: BaseException) -> None:
        """After a fault of the loop itself: fail every request. Sound entries at rest stay."""
        self._in_flight.abandon(fault)

    # -- the algorithm ----------------------------------------------------------------------------

    def step(self) -> bool:
        """Admit what fits, prefill one chunk of a prompt and decode one token of every reply; with nothing of
        that to do, write one file of the cache folder.

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
            self.store.check()
        return self.store.disk.step()

    def _admit(self) -> None:
        """Begin the next prompt: that of the request whose turn it is, or one to read ahead if none waits."""
        for expired in self._admission.take_expired():
            self._in_flight.end(expired, self._admission.too_late)
        if self._admission.line:
            self._in_flight.stop_reading_ahead()
            decoding = [reply.siblings.ticket for reply in self._decoder.replies]
            while ticket := self._admission.take(
                decoding, self._prefiller.tickets, self._prefiller.n_left, self._may_join
            ):
                self._begin(ticket)
        elif self._admission.has_ahead and not self._prefiller.prefills and not self._decoder.replies:
            self._begin_ahead(self._admission.take_ahead())

    def _may_join(self, request: GenerationRequest) -> bool:
        """Whether a prompt may be prefilled now."""
        return self._prefiller.may_join(
            request.prompt.ids, self.prefill_tokens, lambda: self._planner.n_suffix(request)
        )

    def _begin(self, ticket: Ticket) -> None:
        """Plan a client's prompt, take the state that the plan names, and start the prefill."""
        ticket.n_starts += 1
        try:
            self._outbox.flush()  # the state may have to be read from disk
            prefill, report = self._planned(ticket)
        except BaseException as fault:
            self._fail(ticket, fault)
            return
        self._prefiller.join(prefill)
        if not ticket.is_planned:
            ticket.is_planned = True
            self.counters.n_prompt += report.prompt_tokens
            self.counters.n_reused += report.reused_tokens
            self._outbox.send(ticket.emit, Planned(report))

    def _planned(self, ticket: Ticket) -> tuple[Prefill, PlanReport]:
        """A prefill on the state that the plan for a client's prompt names."""
        grammar = self._maker.start_grammar(ticket.request.reply)
        plan = self._planner.plan(ticket.request)
        ticket.request = replace(ticket.request, prompt=plan.prompt)
        prediction = () if ticket.request.prediction is None else (ticket.request.prediction,)
        prefill = Prefill(
            ticket.request,
            self.store.take(plan.choice),
            plan.choice.captures,
            ticket=ticket,
            grammar=grammar,
            quotes=(*plan.quotes, *prediction),
            began_at=self._clock(),
        )
        return prefill, plan.report

    def _begin_ahead(self, request: WarmRequest) -> None:
        """Plan a prompt to read ahead, and start its prefill if memory has room for it."""
        try:
            plan = self._planner.plan(request)
            n_suffix = len(plan.prompt.ids) - plan.choice.plan.reusable_len
            if n_suffix < request.least_tokens or not plan.choice.is_affordable:
                return
            running = self.store.take(plan.choice)
            running.ahead_from = len(running)
        except BaseException as fault:
            self._in_flight.fail_ahead(request, fault)
            return
        self._prefiller.join(Prefill(replace(request, prompt=plan.prompt), running, plan.choice.captures))

    def _prefill(self) -> bool:
        """Feed a chunk of a prompt. After its last chunk a client's prompt is decoded, one read ahead
        rests."""
        if not self._prefiller.prefills:
            return False
        self._outbox.flush()
        self._prefiller.step(self.prefill_tokens)
        while prefill := self._prefiller.take_fed():
            self.counters.n_prefilled += prefill.n_last
            if prefill.ticket is None:
                self._advance_ahead(prefill)
            else:
                self._advance(prefill, prefill.ticket)
        self.store.enforce()
        return True

    @property
    def prefill_tokens(self) -> int:
        """The most prompt tokens that one step feeds."""
        if not self._decoder.replies:
            return self._options.prefill_tokens or self.forward.tokens_within(PREFILL_S)
        return self._options.shared_prefill_tokens or self.forward.tokens_within(SHARED_PREFILL_S)

    def _advance(self, prefill: Prefill, ticket: Ticket) -> None:
        """A chunk of a client's prompt was fed."""
        self._admission.allowances.charge(ticket.request.slot.tenant, prefill.n_last)
        if prefill.fault is not None:
            self._fail(ticket, prefill.fault)
            return
        if ticket.request.tells_prefill:
            self._outbox.send(ticket.emit, prefill.progress(self._clock()))
        if prefill.is_over:
            try:
                self._begin_replies(prefill, ticket)
            except BaseException as fault:
                if not prefill.running.is_lent:
                    self._in_flight.keep(prefill.running)  # the prompt was fed, whatever failed after that
                self._fail(ticket, fault)

    def _advance_ahead(self, prefill: Prefill) -> None:
        """A chunk of a prompt was read ahead."""
        self.counters.n_read_ahead += prefill.n_last
        if prefill.fault is not None:
            self._in_flight.fail_ahead(prefill.request, prefill.fault)
        elif prefill.is_over:
            self._in_flight.keep(prefill.running)

    def _begin_replies(self, prefill: Prefill, ticket: Ticket) -> None:
        """Begin the replies to a prompt; all but the first get a copy of its state."""
        assert prefill.logits is not None
        running, n_first = prefill.running, self._admission.width(ticket.request)
        siblings = Siblings(ticket, None, prefill.logits, prefill.grammar, prefill.quotes)
        others = [self.store.branch(running) for _ in range(n_first - 1)]
        if n_first < ticket.request.n_replies:
            siblings.base = self.store.branch(running)
        for entry in (running, *others):
            self._begin_reply(siblings, entry)

    def _begin_reply(self, siblings: Siblings, running: RunningEntry) -> None:
        reply = self._maker.make(siblings, running)
        self._decoder.join(reply, siblings.logits)
        siblings.n_begun += 1

    def _decode(self) -> bool:
        """Decode one token of every reply; remember those that ended, and tell their clients."""
        replies = self._decoder.replies
        if not replies:
            return False
        before = [(reply, reply.n_tokens) for reply in replies]
        try:
            over = self._decoder.step()
        except BaseException as fault:
            self._decoder.abandon()
            for ticket in tickets_of(replies):
                self._fail(ticket, fault)
            return True
        for reply, n_before in before:
            n_tokens = reply.n_tokens - n_before
            self.counters.n_generated += n_tokens
            self._admission.allowances.charge(reply.request.slot.tenant, n_tokens)
        for reply in over:  # before any of them fails, for a failure drops what is neither kept nor fed
            self._in_flight.leave(reply)
        for reply in sorted(over, key=lambda reply: reply.fault is not None):
            self._finish(reply)
        if self._decoder.has_grown:
            self.store.enforce()
        return True

    def _finish(self, reply: Reply) -> None:
        """Tell a client how a reply ended, and begin the next one in its place."""
        siblings, ticket = reply.siblings, reply.siblings.ticket
        if reply.speculation is not None:
            self.counters.n_drafted += reply.speculation.n_drafted
            self.counters.n_accepted += reply.speculation.n_accepted
        if reply.fault is not None:
            self._fail(ticket, reply.fault)
        elif not ticket.is_over:
            self._outbox.send(ticket.emit, reply.finished())
            if siblings.base is not None:
                try:
                    self._begin_reply(siblings, siblings.next_entry(self.store))
                except BaseException as fault:
                    self._fail(ticket, fault)

    def _fail(self, ticket: Ticket, fault: BaseException) -> None:
        """End a request because of ``fault``, or begin it once more if memory ran out."""
        if self._in_flight.fail(ticket, fault):
            self._begin(ticket)
