"""A reply while it is being decoded: its tokens, its text, how it is emitted, and how it ends.

An event wakes the event loop's thread, and decoding tokens to text is slow when its code has left the CPU's
caches. Both are expensive next to a decode step of a few milliseconds. So new tokens of all replies are held
back until an interval has passed, and only then turned into text and emitted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from cache.entry import RunningEntry
from cache.state import Checkpoint
from cache.store import Store
from model.sampling import Sampler, Swap
from model.text.deltas import Delta, joined
from model.text.grammar.masks import Grammar, GrammarTable
from model.text.reply import ReplyReader, close_thought_ids
from model.text.tokenizer import TextTokenizer
from server.engine.admission import Ticket
from server.engine.drafting import Drafting, Speculation
from server.engine.picking import Constraint
from server.events import (
    Emit,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Progress,
    ReplyFormat,
    TokenLogprob,
)

STOP_STATE_GAP = 32
"""Generated tokens between two checkpoints kept for stop strings: at most so many are fed again after a cut,
plus text that might have become a stop string."""


@dataclass(eq=False)
class Siblings:
    """The ``n`` replies to one prompt; those for which there is no room yet begin as others end.

    Attributes:
        base: the prompt's entry, from which later replies branch; None once all have begun.
        logits: [V], those of the prompt's last token.
        grammar: what their content must match, in its start state.
        quotes: uint32 arrays; texts other than the prompt that they may quote.
        n_begun: replies that have begun.
    """

    ticket: Ticket
    base: RunningEntry | None
    logits: mx.array
    grammar: Grammar | None = None
    quotes: tuple[NDArray[np.uint32], ...] = ()
    n_begun: int = 0

    def next_entry(self, store: Store) -> RunningEntry:
        """An entry for the next reply: a branch of ``base`` or, for the last reply, ``base`` itself."""
        assert self.base is not None
        base = self.base
        if self.n_begun < self.ticket.request.n_replies - 1:
            return store.branch(base)
        self.base = None
        return base


@dataclass(eq=False)
class Reply:
    """One reply while it is being decoded.

    Attributes:
        siblings: the replies to the same prompt.
        index: its number among them. Only the conversation of the first is saved: the others differ from it
            in nothing but the reply, which the next prompt renders anew.
        running: the ids fed and, while the reply is outside the batch, the state.
        token_ids: the reply's ids, the stop token included.
        unparsed_ids: those that ``reader`` has not parsed yet.
        unsent_deltas: parsed text that is not emitted yet.
        unsent_logprobs: by index of the token, until its text is emitted as content.
        newest_state: position of the newest checkpoint, in tokens from the prompt's start.
        stop_state: position of the one checkpoint kept in case a stop string cuts the text after it.
        speculation: its drafts; None for a reply without.
        parses_every_token: whether each token must be parsed before the next one is sampled.
        finish: why the reply ended; None while it is being decoded and after a fault.
        fault: what broke this reply alone, if anything did.
    """

    siblings: Siblings
    index: int
    running: RunningEntry
    sampler: Sampler
    reader: ReplyReader
    constraint: Constraint | None = None
    speculation: Speculation | None = None
    token_ids: list[int] = field(default_factory=list)
    unparsed_ids: list[int] = field(default_factory=list)
    unsent_deltas: list[Delta] = field(default_factory=list)
    unsent_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    newest_state: int = field(init=False)
    stop_state: int | None = None
    finish: FinishReason | None = None
    fault: BaseException | None = None
    parses_every_token: bool = field(init=False)

    def __post_init__(self) -> None:
        self.newest_state = len(self.running)
        self.parses_every_token = self.constraint is not None or self.has_stops

    @property
    def request(self) -> GenerationRequest:
        return self.siblings.ticket.request

    @property
    def emit(self) -> Emit:
        """Where its events go."""
        return self.siblings.ticket.emit

    @property
    def has_stops(self) -> bool:
        return bool(self.request.reply.stops)

    @property
    def is_over(self) -> bool:
        return self.finish is not None or self.fault is not None

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    def parse(self) -> None:
        """Parse the tokens that are not parsed yet."""
        unparsed, self.unparsed_ids = self.unparsed_ids, []
        self.unsent_deltas += self.reader.push_all(unparsed)

    def end(self, reason: FinishReason) -> None:
        """End the reply, of which every token is parsed."""
        self.unsent_deltas += self.reader.finish(is_cut=reason == "length")
        is_cut = reason == "length" and self.reader.in_call
        self.finish = "tool_calls" if self.reader.called_tools and not is_cut else reason

    def fail(self, fault: BaseException) -> None:
        """End this reply alone, because of ``fault``."""
        self.fault, self.finish = fault, None

    def take_progress(self) -> Progress:
        """What is new since the last call. A fault in parsing ends the reply."""
        try:
            self.parse()
        except BaseException as fault:
            self.fail(fault)
        self.siblings.ticket.is_answered = True
        deltas, self.unsent_deltas = self.unsent_deltas, []
        content = self.reader.take_content_tokens()
        logprobs = tuple(self.unsent_logprobs.pop(i) for i in content if i in self.unsent_logprobs)
        return Progress(self.index, tuple(joined(deltas)), logprobs, self.n_tokens)

    def finished(self) -> Finished:
        """The last event of a reply that ended without a fault."""
        assert self.finish is not None
        ids, reader = tuple(self.token_ids), self.reader
        drafts = self.speculation
        return Finished(
            self.index,
            self.finish,
            len(ids),
            reader.n_reasoning_tokens,
            ids,
            reader.stop,
            n_drafted=0 if drafts is None else drafts.n_drafted,
            n_accepted=0 if drafts is None else drafts.n_accepted,
        )

    def mask(self, vocab_size: int) -> mx.array | None:
        """Which tokens may come next, [V] bool; None if all may. Called once for each token."""
        return None if self.constraint is None else self.constraint.mask(vocab_size)

    @property
    def swap(self) -> Swap | None:
        """What replaces a sampled token before it is fed; None if nothing does."""
        return None if self.constraint is None else self.constraint.swap

    # -- stop strings ------------------------------------------------------------------------------

    @property
    def needs_stop_state(self) -> bool:
        """Whether a checkpoint here would save a later cut many tokens, and no cut can fall before it."""
        since = max(self.newest_state, self.stop_state or 0)
        return self.has_stops and len(self.running) - since >= STOP_STATE_GAP and self.reader.is_settled

    def keep_stop_state(self, checkpoint: Checkpoint) -> None:
        """Keep ``checkpoint``, taken now, in place of the previous one."""
        self.drop_stop_state()
        if checkpoint.length not in self.running.ring.lengths:
            self.running.capture(checkpoint)
            self.stop_state = checkpoint.length

    def drop_stop_state(self) -> None:
        """Drop the checkpoint kept for stop strings, if there is one: no cut can need it any more."""
        if self.stop_state in self.running.ring.lengths:
            self.running.ring.remove(self.stop_state)
        self.stop_state = None

    @property
    def n_kept(self) -> int:
        """Tokens of prompt and reply that lie wholly before the stop string."""
        return len(self.request.prompt.ids) + self.reader.cut_token_index

    def rewind(self) -> None:
        """Go back to the newest checkpoint before the stop string; the reply must have left the batch."""
        lengths = [length for length in self.running.ring.lengths if length <= self.n_kept]
        if lengths:
            self.running.rewind(self.running.ring.at(lengths[-1]))


def tickets_of(replies: Iterable[Reply]) -> list[Ticket]:
    """The requests of ``replies``, each once."""
    return list(dict.fromkeys(reply.siblings.ticket for reply in replies))


class Growing(Protocol):
    """A reply that gains tokens."""

    @property
    def emit(self) -> Emit:
        """Where its events go."""
        ...

    @property
    def n_tokens(self) -> int:
        """Its tokens so far."""
        ...

    def take_progress(self) -> Progress:
        """What is new since the last call. Never raises."""
        ...


class Outbox:
    """Emits the events of all requests, in order: what is held back goes out before anything else.

    Args:
        interval_s: how long tokens may be held back; 0 emits each at once.
        clock: seconds, monotonic.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._held: dict[int, Growing] = {}  # by identity
        self._has_first_token = False
        self._flushed_at = float("-inf")

    def send(self, emit: Emit, event: Event) -> None:
        """Emit ``event`` now."""
        self.flush()
        emit(event)

    def hold(self, reply: Growing) -> None:
        """``reply`` has a new token; :meth:`end_step` decides when to emit it."""
        self._held[id(reply)] = reply
        self._has_first_token |= reply.n_tokens <= 1

    def end_step(self) -> None:
        """The step is over: emit new tokens if the interval has passed, or if one is the first of its
        reply."""
        if self._has_first_token or self._clock() - self._flushed_at >= self._interval_s:
            self.flush()

    def flush(self) -> None:
        """Emit what is held back. Called before anything that takes longer than a step."""
        if not self._held:
            return
        held, self._held = self._held, {}
        self._has_first_token = False
        self._flushed_at = self._clock()
        # Emit only after all are turned into text: the first event wakes the event loop, which should find
        # the others, too.
        events = [(reply.emit, reply.take_progress()) for reply in held.values()]
        for emit, progress in events:
            emit(progress)


Grammars = Callable[[], GrammarTable]
"""Returns the table of grammars; the first call may build it."""


class ReplyMaker:
    """Makes replies.

    Args:
        tokenizer: turns their tokens into text.
        vocab_size: V, the length of a row of logits.
        stop_ids: token ids that end a reply.
        grammars: returns the table of grammars when one is needed; None builds it then.
        drafting: how replies are drafted; None for no drafts.
        fuses_sampling: as :class:`model.sampling.Sampler` takes it.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        vocab_size: int,
        stop_ids: frozenset[int],
        grammars: Grammars | None = None,
        drafting: Drafting | None = None,
        *,
        fuses_sampling: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = stop_ids
        self._grammars = grammars or cache(partial(GrammarTable, tokenizer, vocab_size))
        self._drafting = drafting
        self._fuses_sampling = fuses_sampling

    def start_grammar(self, form: ReplyFormat) -> Grammar | None:
        """The grammar that the replies' content must match, in its start state; None if there is none.

        Raises:
            InputError: it is too large.
        """
        return None if form.grammar is None else self._grammars().start(form.grammar)

    def make(self, siblings: Siblings, running: RunningEntry) -> Reply:
        """The next of ``siblings``, which feeds ``running``."""
        request, form = siblings.ticket.request, siblings.ticket.request.reply
        reader = ReplyReader(
            self._tokenizer,
            opens_thought=request.prompt.opens_thought,
            tools=form.tools,
            stops=form.stops,
            may_think=form.may_think and not request.prompt.begins_content,
            is_constrained=form.grammar is not None,
        )
        index = siblings.n_begun
        return Reply(
            siblings=siblings,
            index=index,
            running=running,
            sampler=Sampler(
                request.sampling,
                self._vocab_size,
                request.prompt.ids,
                index,
                end_ids=tuple(self._stop_ids),
                min_tokens=request.max_tokens if form.ignore_eos else form.min_tokens,
                fuses=self._fuses_sampling,
            ),
            reader=reader,
            constraint=self._constraint(form, siblings.grammar, reader),
            speculation=self._speculation(siblings),
        )

    def _speculation(self, siblings: Siblings) -> Speculation | None:
        if self._drafting is None:
            return None
        return self._drafting.begin(siblings.quotes, siblings.ticket.request.prompt.ids)

    def _constraint(
        self, form: ReplyFormat, grammar: Grammar | None, reader: ReplyReader
    ) -> Constraint | None:
        if form.max_thought_tokens is None and grammar is None:
            return None
        return Constraint(
            reader,
            max_thought_tokens=form.max_thought_tokens,
            closing_ids=close_thought_ids(self._tokenizer),
            grammar=None if grammar is None else grammar.copy(),
            end_ids=tuple(self._stop_ids),
        )
