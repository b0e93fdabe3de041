"""What the loop keeps of a request on its way: a :class:`Job` until its prompt is read, then a
:class:`Reply` for each answer that is being written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from cache.entry import RunningEntry
from cache.state import Checkpoint
from model.sampling import Sampler, Swap
from model.text.deltas import Delta, joined
from model.text.reply import ReplyReader
from server.engine.constraint import Constraint
from server.events import Emit, FinishReason, GenerationRequest, Progress, TokenLogprob, WarmRequest


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request that waits, and where its events go."""

    request: GenerationRequest
    emit: Emit


@dataclass
class Job:
    """A prompt that is being read.

    Attributes:
        captures: the positions whose states are worth keeping.
        emit: where events go; None where nobody listens, as when the next prompt is read ahead.
    """

    request: GenerationRequest | WarmRequest
    running: RunningEntry
    captures: tuple[int, ...]
    emit: Emit | None

    @property
    def position(self) -> int:
        """Prompt tokens read so far."""
        return len(self.running)

    @property
    def is_read(self) -> bool:
        return self.position == len(self.request.prompt.ids)

    def next_chunk(self, n_tokens: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """The next ids to feed, [at most n_tokens] uint32, and the capture positions among them."""
        start = self.position
        end = min(start + n_tokens, len(self.request.prompt.ids))
        return self.request.prompt.ids[start:end], tuple(p for p in self.captures if start < p <= end)


@dataclass
class Reply:
    """One answer that is being written.

    Attributes:
        running: the ids fed and, while the reply is outside the batch, the state.
        keeps_entry: save the entry at the end; False for the further replies of ``n > 1``, which
            part from the first one only in text that the next prompt renders anew anyway.
        token_ids: the reply's ids, the stop token included.
        unread_ids: those that ``reader`` has not read yet.
        untold_deltas: what reading brought, until it goes out.
        untold_logprobs: by index of the token, until its text goes out as content.
        newest_state: position of the newest state kept, in tokens from the prompt's start.
        recent: states at the last few tokens, to go back to where a stop string cut the text.
        reads_every_token: whether the text of one token decides about the next, so that it cannot wait.
        finish: why the reply ended; None while it is being written and after a fault.
        fault: what broke this reply alone, if anything did.
    """

    request: GenerationRequest
    emit: Emit
    index: int
    running: RunningEntry
    sampler: Sampler
    reader: ReplyReader
    constraint: Constraint | None = None
    keeps_entry: bool = True
    token_ids: list[int] = field(default_factory=list)
    unread_ids: list[int] = field(default_factory=list)
    untold_deltas: list[Delta] = field(default_factory=list)
    untold_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    newest_state: int = 0
    recent: deque[Checkpoint] = field(default_factory=deque)
    finish: FinishReason | None = None
    fault: Exception | None = None
    reads_every_token: bool = field(init=False)

    def __post_init__(self) -> None:
        self.reads_every_token = self.constraint is not None or bool(self.request.reply.stops)

    @property
    def is_over(self) -> bool:
        return self.finish is not None or self.fault is not None

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    def read(self) -> None:
        """Turn the tokens that are not read yet into text."""
        unread, self.unread_ids = self.unread_ids, []
        self.untold_deltas += self.reader.push_all(unread)

    def end(self, reason: FinishReason) -> None:
        """The reply is over; all its tokens were read."""
        self.untold_deltas += self.reader.finish(is_cut=reason == "length")
        is_cut = reason == "length" and self.reader.in_call
        self.finish = "tool_calls" if self.reader.called_tools and not is_cut else reason

    def fail(self, fault: Exception) -> None:
        """``fault`` breaks this reply alone."""
        self.fault, self.finish = fault, None

    def take_progress(self) -> Progress:
        """What the reply has grown by since the last call. A fault in reading ends the reply."""
        try:
            self.read()
        except Exception as fault:
            self.fail(fault)
        deltas, self.untold_deltas = self.untold_deltas, []
        told = self.reader.take_content_tokens()
        logprobs = tuple(self.untold_logprobs.pop(i) for i in told if i in self.untold_logprobs)
        return Progress(self.index, tuple(joined(deltas)), logprobs, self.n_tokens)

    def mask(self, vocab_size: int) -> mx.array | None:
        """Which tokens may come next, [V] bool; None when all may. Ask once for each token."""
        return None if self.constraint is None else self.constraint.mask(vocab_size)

    @property
    def swap(self) -> Swap | None:
        """What is done to a sampled token before it is written, if anything is."""
        return None if self.constraint is None else self.constraint.swap
