"""The algorithm of the engine: plan, read, write, remember; one small step at a time.

Everything here runs on one thread, without waiting: :meth:`EngineLoop.step` does a bounded amount
of work and returns. ``server/engine/thread.py`` calls it from the engine thread; tests call it directly.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import mlx.core as mx

from cache.entry import RunningEntry
from cache.selection import Choice
from cache.store import Store
from model.forward import Forward
from model.sampling import Sampler
from model.state import State
from model.text.grammar import GrammarTable
from model.text.reply import ReplyReader, close_thought_ids
from model.text.tokenizer import TextTokenizer
from server.client import EngineStats
from server.engine.constraint import Constraint
from server.engine.decoding import Decoder, finished
from server.engine.fed_ids import adopt_fed_ids
from server.engine.outbox import Outbox
from server.engine.report import plan_report, prompt_shape
from server.engine.sequence import Job, Reply, Ticket
from server.events import Emit, Failed, GenerationRequest, Planned, ReplyFormat, WarmRequest

log = logging.getLogger("crossturn.engine")


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How much the loop takes on.

    Attributes:
        max_replies: replies written together at most; further requests wait.
        max_waiting: requests that may wait; one more is refused as overload.
        prefill_tokens: tokens read in one step while nothing is being written; None for what the
            device takes at once.
        shared_prefill_tokens: the same while replies are being written, whose pause it bounds; None
            for a quarter of that.
        reads_ahead: whether the known part of the next prompt is read in idle time.
        keeps_fed_ids: whether a message that reads the same keeps the ids that were fed for it.
        stream_interval_s: how long a reply's text may wait for more before it is handed over; 0 hands over
            every token at once.
        checks_store: assert the store's invariants whenever the loop falls idle.
    """

    max_replies: int = 16
    max_waiting: int = 256
    prefill_tokens: int | None = None
    shared_prefill_tokens: int | None = None
    reads_ahead: bool = True
    keeps_fed_ids: bool = False
    stream_interval_s: float = 0.0
    checks_store: bool = False


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


class EngineLoop:
    """Owns the requests under way. The states themselves belong to ``store`` and the decode batch.

    Args:
        forward: the model.
        tokenizer: turns reply tokens into text.
        store: what is remembered of earlier prompts.
        stop_ids: token ids that end a reply.
        grammars: gives the table of grammars when one is wanted; None makes it then.
        clock: seconds, monotonic.
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
    ) -> None:
        self._forward = forward
        self._tokenizer = tokenizer
        self._store = store
        self._options = options or LoopOptions()
        self._outbox = Outbox(self._options.stream_interval_s, clock)
        self._decoder = Decoder(forward, stop_ids, self._outbox)
        self._stop_ids = stop_ids
        self._grammars = grammars or functools.cache(
            functools.partial(GrammarTable, tokenizer, forward.config.vocab_size)
        )
        self._waiting: deque[Ticket] = deque()
        self._ahead: deque[WarmRequest] = deque()
        self._reading: Job | None = None
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
        return bool(self._waiting or self._decoder.replies) or self._reading_ticket is not None

    @property
    def has_work(self) -> bool:
        return self.has_requests or bool(self._ahead or self._reading) or self._store.disk.is_behind

    @property
    def _reading_ticket(self) -> Ticket | None:
        """The client's request whose prompt is being read, if one is."""
        job = self._reading
        if job is None or job.emit is None or isinstance(job.request, WarmRequest):
            return None
        return Ticket(job.request, job.emit)

    def stats(self) -> EngineStats:
        """May be asked for from any thread: whatever changes meanwhile is read once."""
        reading, counters = self._reading, self.counters
        running = {reply.request.id for reply in self._decoder.replies}
        if reading is not None and isinstance(reading.request, GenerationRequest):
            running.add(reading.request.id)
        return EngineStats(
            n_steps=counters.n_steps,
            n_running=len(running),
            n_waiting=len(self._waiting),
            n_prompt_tokens=counters.n_prompt,
            n_reused_tokens=counters.n_reused,
            n_prefilled_tokens=counters.n_prefilled,
            n_read_ahead_tokens=counters.n_read_ahead,
            n_generated_tokens=counters.n_generated,
        )

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """Queue ``request``; ``emit`` takes its events."""
        if len(self._waiting) >= self._options.max_waiting:
            message = f"{len(self._waiting)} requests are waiting already"
            self._outbox.tell(emit, Failed(message, "overloaded", retry_after_s=_RETRY_AFTER_S))
            return
        self._waiting.append(Ticket(request, emit))

    def read_ahead(self, request: WarmRequest) -> None:
        """Read ``request`` when idle. A later one for the same slot replaces an earlier one."""
        if self._options.reads_ahead:
            self._ahead = deque(other for other in self._ahead if other.slot != request.slot)
            self._ahead.append(request)

    def cancel(self, request_id: str) -> None:
        """End a request where it stands and keep the work done; unknown ids are ignored."""
        emit: Emit | None = None
        for waiting in [waiting for waiting in self._waiting if waiting.request.id == request_id]:
            self._waiting.remove(waiting)
            emit = waiting.emit
        if self._reading is not None and self._reading.request.id == request_id:
            emit = self._reading.emit
            self._put_aside()
        for reply in [reply for reply in self._decoder.replies if reply.request.id == request_id]:
            emit = reply.emit
            self._keep(self._decoder.leave(reply))
        if emit is not None:
            self._outbox.tell(emit, Failed("the request was cancelled", "cancelled"))

    def cancel_all(self) -> None:
        """End everything a client waits for, as at shutdown."""
        for ticket in self._tickets():
            self.cancel(ticket.request.id)

    def reset(self) -> None:
        """After a fault of the loop itself: fail what runs, forget all that is remembered."""
        tickets = self._tickets()
        self._waiting.clear()
        self._ahead.clear()
        self._reading = None
        self._decoder.abandon()
        self._store.clear()
        for ticket in tickets:
            self._outbox.tell(ticket.emit, _internal_failure())

    def _tickets(self) -> list[Ticket]:
        """Each request that a client waits for, once."""
        reading = [] if self._reading_ticket is None else [self._reading_ticket]
        writing = {reply.request.id: Ticket(reply.request, reply.emit) for reply in self._decoder.replies}
        return [*self._waiting, *reading, *writing.values()]

    # -- the algorithm ----------------------------------------------------------------------------

    def step(self) -> bool:
        """Admit what fits, read one chunk of a prompt, write one token of every reply; when there is
        nothing of that, write one file of the cache folder.

        Returns:
            whether there was anything to do.
        """
        self._admit()
        has_read = self._read_chunk()
        has_written = self._write_tokens()
        if has_read or has_written:
            self.counters.n_steps += 1
            return True
        if self._options.checks_store:
            self._store.check()
        return self._store.disk.step()

    def _admit(self) -> None:
        """Choose the next prompt to read: the oldest that fits, else one to read ahead."""
        if self._waiting:
            if self._reading is not None and isinstance(self._reading.request, WarmRequest):
                self._put_aside()
            if self._reading is None and self._fits(self._waiting[0].request):
                ticket = self._waiting.popleft()
                self._begin(ticket.request, ticket.emit)
        elif self._ahead and self._reading is None and not self._decoder.replies:
            self._begin(self._ahead.popleft(), None)

    def _fits(self, request: GenerationRequest) -> bool:
        """Whether there is a place in the batch and memory beside what runs. Alone, all fits."""
        replies = self._decoder.replies
        if not replies:
            return True
        if len(replies) + request.n_replies > self._options.max_replies:
            return False
        n_tokens = len(request.prompt.ids) + min(request.max_tokens, _EXPECTED_REPLY_TOKENS)
        return self._store.can_admit(self.state_bytes(n_tokens) * request.n_replies)

    def _begin(self, request: GenerationRequest | WarmRequest, emit: Emit | None) -> None:
        """Plan the prompt and take the state that the plan names."""
        self._outbox.flush()  # what the plan names may have to be read from disk
        self._store.recall(request.slot, request.prompt.ids)
        choice, n_adopted = self._plan(request), 0
        if self._options.keeps_fed_ids and choice.source is not None and choice.diverged_at is not None:
            prompt, n_adopted = adopt_fed_ids(
                request.prompt,
                choice.source.ids.view,
                self._tokenizer,
                end_ids=self._stop_ids,
                max_tokens=self._store.metadata.max_cache_len - 1,
            )
            request = replace(request, prompt=prompt)
            choice = self._plan(request)
        report = plan_report(choice, request, n_adopted)
        running = self._store.take(choice)
        self._reading = Job(request, running, choice.captures, emit)
        if emit is None:
            return
        self.counters.n_requests += 1
        self.counters.n_prompt += report.prompt_tokens
        self.counters.n_reused += report.reused_tokens
        self._outbox.tell(emit, Planned(report))

    def _plan(self, request: GenerationRequest | WarmRequest) -> Choice:
        return self._store.plan(request.slot, request.prompt.ids, prompt_shape(request.prompt))

    def _read_chunk(self) -> bool:
        job = self._reading
        if job is None:
            return False
        self._outbox.flush()
        ids, captures = job.next_chunk(self.prefill_tokens)
        try:
            read = self._forward.prefill(cast(State, job.running.state), ids, capture_at=captures)
        except Exception as fault:
            self._reading = None
            self._fail(job, fault)
            return True
        job.running.ids.extend(ids)
        for checkpoint in read.checkpoints:
            job.running.capture(checkpoint)
        self._store.enforce()
        self.counters.n_prefilled += len(ids)
        if job.emit is None or isinstance(job.request, WarmRequest):
            self.counters.n_read_ahead += len(ids)
            if job.is_read:
                self._put_aside()
            return True
        if job.is_read:
            self._reading = None
            self._begin_replies(Ticket(job.request, job.emit), job.running, read.logits)
        return True

    @property
    def prefill_tokens(self) -> int:
        """Tokens of a prompt that one step reads at most."""
        alone = self._options.prefill_tokens or self._forward.part_tokens
        if not self._decoder.replies:
            return alone
        return self._options.shared_prefill_tokens or alone // 4

    def _begin_replies(self, ticket: Ticket, running: RunningEntry, logits: mx.array) -> None:
        """From one read prompt to its ``n`` replies; all but the first get a copy of the state."""
        branches = [self._store.branch(running) for _ in range(ticket.request.n_replies - 1)]
        for index, entry in enumerate([running, *branches]):
            self._decoder.join(self._new_reply(ticket, index, entry), logits)

    def _new_reply(self, ticket: Ticket, index: int, running: RunningEntry) -> Reply:
        request = ticket.request
        reader = ReplyReader(
            self._tokenizer,
            opens_thought=request.prompt.opens_thought,
            tools=request.reply.tools,
            stops=request.reply.stops,
            may_think=request.reply.may_think and not request.prompt.begins_content,
            is_constrained=request.reply.grammar is not None,
        )
        return Reply(
            request=request,
            emit=ticket.emit,
            index=index,
            running=running,
            sampler=Sampler(request.sampling, self._forward.config.vocab_size, request.prompt.ids, index),
            reader=reader,
            constraint=self._constraint_of(request.reply, reader),
            keeps_entry=index == 0,
            newest_state=len(running),
        )

    def _constraint_of(self, form: ReplyFormat, reader: ReplyReader) -> Constraint | None:
        if form.max_thought_tokens is None and form.grammar is None:
            return None
        return Constraint(
            reader,
            max_thought_tokens=form.max_thought_tokens,
            closing_ids=close_thought_ids(self._tokenizer),
            grammar=None if form.grammar is None else self._grammars().start(form.grammar),
            end_ids=tuple(self._stop_ids),
        )

    def _write_tokens(self) -> bool:
        if not self._decoder.replies:
            return False
        self.counters.n_generated += len(self._decoder.replies)
        try:
            over = self._decoder.step()
        except Exception as fault:
            for reply in self._decoder.abandon():
                self._fail(reply, fault)
            return True
        for reply in over:
            if reply.fault is not None:
                self._end_siblings(reply)
                self._fail(reply, reply.fault)
            else:
                self._keep(reply)
                self._outbox.tell(reply.emit, finished(reply))
        if self._decoder.has_grown:
            self._store.enforce()
        return True

    # -- the ends of a request --------------------------------------------------------------------

    def _end_siblings(self, reply: Reply) -> None:
        """A fault in one of ``n`` replies ends the request and so the other replies."""
        for other in self._decoder.replies:
            if other.request is reply.request:
                self._keep(self._decoder.leave(other))

    def _keep(self, reply: Reply) -> None:
        """Remember a reply that has left the batch, at the boundary its state stands for."""
        if reply.keeps_entry:
            self._store.save(reply.running)
        else:
            self._store.drop(reply.running)

    def _put_aside(self) -> None:
        """Stop reading a prompt and keep the part that is read."""
        assert self._reading is not None
        self._store.save(self._reading.running)
        self._reading = None

    def _fail(self, failed: Job | Reply, fault: Exception) -> None:
        """What a fault has touched is not remembered; everything else goes on."""
        log.error("request %s failed", failed.request.id, exc_info=fault)
        self._store.drop(failed.running)
        mx.clear_cache()
        if failed.emit is not None:
            self._outbox.tell(failed.emit, _internal_failure())


def _internal_failure() -> Failed:
    return Failed("the reply could not be generated; the server's log says why", "internal")


_RETRY_AFTER_S = 5.0
"""What a refused client is told to wait: about the time of a short reply."""

_EXPECTED_REPLY_TOKENS = 1024
"""Reply tokens that admission counts on: most replies are far shorter than their max_tokens."""
