"""Decodes all running replies together: one token per reply and step, or several where drafts are accepted.

The order of work makes a plain step fast. The next forward pass is launched with the tokens just sampled,
before Python knows their values. Only then are those tokens synced, parsed and emitted, so text is handled
while the device computes. By the time a reply turns out to be finished, its last token has been fed: the
state of a finished reply represents all of its tokens, the stop token included.

Where drafts pay, a step feeds the sampled token of each reply together with its draft. The longest prefix of
the draft that equals what would have been sampled anyway is kept, with its state; the rest is rolled back.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar, cast

import mlx.core as mx
import numpy as np

from cache.boundaries import due_while_decoding
from cache.entry import RunningEntry
from model.batch import DecodeBatch
from model.forward import Forward
from model.logits import Logprobs, arrays_of
from model.state import Checkpoint, State
from server.engine.admission import Ticket
from server.engine.drafting import HEAD, SIZES, Depth, MeasuredDepth, Speculation
from server.engine.picking import Checked, check, logprobs_for, pick
from server.engine.reply import Outbox, Reply, tickets_of
from server.events import TokenLogprob

log = logging.getLogger("crossturn.engine")

A = TypeVar("A")
T = TypeVar("T")


class _Row:
    """Stands in for a state while it is part of the batch (``cache.entry.LentState``)."""

    def __init__(self, batch: DecodeBatch, key: int) -> None:
        self._batch = batch
        self._key = key

    @property
    def n_bytes(self) -> int:
        return self._batch.n_bytes_of(self._key)

    def fork(self, checkpoint: Checkpoint) -> State:
        return self._batch.fork(self._key, checkpoint)


class Decoder:
    """Owns the decode batch and the tokens that are sampled but not yet fed.

    Args:
        forward: the model.
        stop_ids: token ids that end a reply.
        outbox: learns which replies have new tokens.
        depth: decides how many tokens to draft.
        clock: seconds, monotonic.

    Attributes:
        replies: those being decoded, in the order of the batch's rows.
        has_grown: the last step may have taken more memory.
    """

    def __init__(
        self,
        forward: Forward,
        stop_ids: frozenset[int],
        outbox: Outbox,
        depth: Depth | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._depth = depth or MeasuredDepth()
        self._clock = clock
        self._outbox = outbox
        self._stop_ids = stop_ids
        self._forward = forward
        self._batch = forward.new_batch()
        self.has_grown = False
        self._has_guessed = False  # the head made drafts for this step
        self._replies: dict[int, Reply] = {}  # by batch key
        self._regroup()
        self._sampled: mx.array | None = None  # [B] uint32, one for each row, not yet fed
        self._logprobs: dict[int, Logprobs] = {}  # by batch key, of the tokens in _sampled
        self._keys = count()

    def _regroup(self) -> None:
        """Update what depends on which replies are in the batch, so that no step has to."""
        self.replies: tuple[Reply, ...] = tuple(self._replies.values())
        self._are_constrained = any(reply.constraint is not None for reply in self.replies)
        self._have_logprobs = any(reply.request.top_logprobs is not None for reply in self.replies)

    def join(self, reply: Reply, logits: mx.array) -> None:
        """Add ``reply`` to the batch and sample its first token from its prompt's last ``logits``, [V]. If
        this raises, nothing has changed."""
        key = next(self._keys)
        token = pick([reply], logits[None])[0]
        if reply.fault is not None:
            raise reply.fault
        (logprobs,) = logprobs_for([reply], logits[None], token.reshape(1))
        self._note_logprobs(key, logprobs)
        token = token.reshape(1)
        if reply.has_stops:
            reply.keep_stop_state(reply.running.state.snapshot())
        if reply.speculation is not None:
            reply.speculation.has_head = self._batch.has_mtp
        self._batch.join(key, cast(State, reply.running.lend(_Row(self._batch, key))))
        self._replies[key] = reply
        self._regroup()
        self._sampled = token if self._sampled is None else mx.concatenate([self._sampled, token])

    def step(self) -> list[Reply]:
        """Feed the sampled tokens and their drafts, sample the next ones, sync and emit those that were fed.

        Returns:
            the replies that ended; they have left the batch with their states.
        """
        began, n_replies = self._clock(), len(self.replies)
        drafts = self._drafts()
        size = self._advance() if drafts is None else self._verify(drafts)
        self._depth.note(n_replies, size, self._clock() - began, has_head=self._has_guessed)
        return [self.leave(reply) for reply in self.replies if reply.is_over]

    def leave(self, reply: Reply) -> Reply:
        """Take a reply out of the batch and give its state back to its entry, rewound if a stop string cut
        the text."""
        row = self.replies.index(reply)
        key = tuple(self._replies)[row]
        del self._replies[key]
        self._regroup()
        self._logprobs.pop(key, None)
        reply.running.give_back(self._batch.leave(key))
        if reply.reader.stopped:
            reply.rewind()
        else:
            reply.drop_stop_state()
        assert self._sampled is not None
        rest = [i for i in range(self._sampled.size) if i != row]
        self._sampled = self._sampled[mx.array(rest)] if rest else None
        return reply

    @property
    def tickets(self) -> list[Ticket]:
        """The requests being answered, each once."""
        return tickets_of(self.replies)

    @property
    def entries(self) -> list[RunningEntry]:
        """The entries that the replies feed, and those from which further replies will branch."""
        bases = [reply.siblings.base for reply in self.replies if reply.siblings.base is not None]
        return [*(reply.running for reply in self.replies), *bases]

    def abandon(self) -> None:
        """Discard the batch, which cannot be trusted after a failed step. Its replies lose their states."""
        self._batch = self._forward.new_batch()
        self._replies, self._sampled, self._logprobs = {}, None, {}
        self._regroup()

    # -- a plain step -----------------------------------------------------------------------------

    def _advance(self) -> int:
        """Feed each reply its sampled token; returns 1, the tokens fed to each."""
        assert self._sampled is not None
        fed, fed_logprobs = self._sampled, self._logprobs
        logits = self._batch.step(fed)  # [B, V]
        self.has_grown = self._batch.has_grown
        if self._are_constrained:
            # A constraint needs the token just fed before it can mask the next one.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            self._sync(fed, fed_logprobs)
            self._sample(logits)
        else:
            self._sample(logits)
            self._sync(fed, fed_logprobs)
        return 1

    def _sample(self, logits: mx.array) -> None:
        self._sampled, self._logprobs = pick(self.replies, logits), {}
        if self._have_logprobs:
            logprobs_of_all = logprobs_for(self.replies, logits, self._sampled)
            for key, logprobs in zip(self._replies, logprobs_of_all, strict=True):
                self._note_logprobs(key, logprobs)
        mx.async_eval(self._sampled, *arrays_of(self._logprobs.values()))  # type: ignore[no-untyped-call]

    def _note_logprobs(self, key: int, logprobs: Logprobs | None) -> None:
        if logprobs is not None:
            self._logprobs[key] = logprobs

    def _sync(self, fed: mx.array, logprobs: dict[int, Logprobs]) -> None:
        """Wait for the values of the tokens that were fed, [B], and add them to the replies."""
        tokens = cast(list[int], fed.tolist())
        for token, (key, reply) in zip(tokens, self._replies.items(), strict=True):
            self._take(reply, token, logprobs.get(key))
            self._keep_states(key, reply)
        self._outbox.end_step()

    # -- a step with drafts -----------------------------------------------------------------------

    def _drafts(self) -> list[list[int]] | None:
        """The draft that follows the sampled token of each reply; None where a plain step is faster."""
        self._has_guessed = False
        for reply in self.replies:
            _guarded(reply, Speculation.catch_up, reply.token_ids)
        speculations = [s for reply in self.replies if (s := reply.speculation) is not None]
        n_replies = len(self.replies)
        if not speculations or not self._depth.may_pay(n_replies, speculations):
            return self._no_drafts(speculations)
        for token, reply in zip(self._sampled_ids(), self.replies, strict=True):
            if reply.speculation is not None and reply.speculation.drafter.n_added == reply.n_tokens:
                _guarded(reply, Speculation.foresee, token)
        size, has_head = self._depth.choose(n_replies, speculations)
        drafts = [self._draft(reply, size - 1) for reply in self.replies]
        if has_head and size > 1:
            self._guess(drafts, size - 1)
        return drafts if any(drafts) else self._no_drafts(speculations)

    def _guess(self, drafts: list[list[int]], n_tokens: int) -> None:
        """Fill in the drafts, of at most ``n_tokens``, of the replies for which the model's head makes them.
        A fault there only ends its drafting."""
        assert self._sampled is not None
        limits = {
            row: self._limit(reply, n_tokens)
            for row, reply in enumerate(self.replies)
            if reply.speculation is not None and reply.speculation.basis == HEAD
        }
        rows = [row for row, limit in limits.items() if limit > 0]
        if not rows:
            return
        keys = tuple(self._replies)
        tokens = self._sampled if len(rows) == len(keys) else self._sampled[mx.array(rows)]
        try:
            guessed = self._batch.guess([keys[row] for row in rows], tokens, max(limits.values()))
            ids = cast(list[list[int]], guessed.tolist())
        except Exception as fault:
            log.error("replies go on without the head's drafts", exc_info=fault)
            for reply in self.replies:
                if reply.speculation is not None:
                    reply.speculation.has_head = False
            return
        self._has_guessed = True
        for row, own in zip(rows, ids, strict=True):
            drafts[row] = own[: limits[row]]

    def _sampled_ids(self) -> list[int]:
        """The values of the tokens that are sampled but not yet fed; waits for them."""
        assert self._sampled is not None
        return cast(list[int], self._sampled.tolist())

    @staticmethod
    def _no_drafts(speculations: Sequence[Speculation]) -> None:
        for speculation in speculations:
            speculation.n_plain += 1

    @staticmethod
    def _limit(reply: Reply, n_tokens: int) -> int:
        """At most ``n_tokens``, and no more than the reply may still grow by behind the sampled one."""
        return min(n_tokens, reply.request.max_tokens - reply.n_tokens - 1)

    @classmethod
    def _draft(cls, reply: Reply, n_tokens: int) -> list[int]:
        """A draft of at most ``n_tokens`` from texts."""
        n_tokens = cls._limit(reply, n_tokens)
        return _guarded(reply, Speculation.guess, n_tokens) or [] if n_tokens > 0 else []

    def _verify(self, drafts: Sequence[Sequence[int]]) -> int:
        """Feed each reply its sampled token and its draft, and keep what is accepted; returns the tokens fed
        to each, padding included."""
        first, fed_logprobs = self._sampled_ids(), self._logprobs
        size = SIZES[bisect_left(SIZES, 1 + max(map(len, drafts)))]
        tokens = np.zeros((len(first), size), np.uint32)
        for row, (token, draft) in enumerate(zip(first, drafts, strict=True)):
            tokens[row, : 1 + len(draft)] = [token, *draft]
        logits = self._batch.extend(mx.array(tokens))  # [B, T, V]
        self.has_grown, self._logprobs = True, {}
        checked = self._check(drafts, logits)
        n_kept, sampled = [], []
        for row, (key, reply) in enumerate(self._replies.items()):
            fed = [first[row], *drafts[row]]
            if reply.constraint is None:
                n, token, logprobs = self._accept(reply, fed, fed_logprobs.get(key), checked[key])
            else:
                n, token, logprobs = self._walk(reply, fed, fed_logprobs.get(key), logits[row])
            n_kept.append(n)
            sampled.append(token)
            self._note_logprobs(key, logprobs)
            if reply.speculation is not None:
                reply.speculation.note(len(drafts[row]), n - 1)
        self._batch.keep(n_kept)
        self._sampled = mx.array(sampled, mx.uint32)
        for key, reply in self._replies.items():
            self._keep_states(key, reply)
        self._outbox.end_step()
        return size

    def _check(self, drafts: Sequence[Sequence[int]], logits: mx.array) -> dict[int, Checked]:
        """How far the drafts of unconstrained replies are accepted, by batch key. If they cannot be checked
        together, none is."""
        rows = [row for row, reply in enumerate(self.replies) if reply.constraint is None]
        if not rows:
            return {}
        keys, replies = tuple(self._replies), [self.replies[row] for row in rows]
        of_free = logits if len(rows) == len(self.replies) else logits[mx.array(rows)]
        try:
            checked = check(replies, [drafts[row] for row in rows], of_free)
        except Exception:
            picked = pick(replies, of_free[:, 0])
            told = logprobs_for(replies, of_free[:, 0], picked)
            tokens = cast(list[int], picked.tolist())
            checked = [Checked(0, token, (own,)) for token, own in zip(tokens, told, strict=True)]
        return {keys[row]: each for row, each in zip(rows, checked, strict=True)}

    def _accept(
        self, reply: Reply, fed: Sequence[int], logprobs: Logprobs | None, checked: Checked
    ) -> tuple[int, int, Logprobs | None]:
        """Add to a reply what was accepted of ``fed``, its sampled token and its draft.

        Returns:
            How many of them stay (fewer than were accepted if one of them ends the reply), the token that
            comes next, and its log probabilities.
        """
        *of_draft, of_next = checked.logprobs
        n = 0
        for token, own in zip(fed[: 1 + checked.n_accepted], (logprobs, *of_draft), strict=True):
            self._take(reply, token, own)
            n += 1
            if reply.is_over:
                break
        return n, checked.token, of_next

    def _walk(
        self, reply: Reply, fed: Sequence[int], logprobs: Logprobs | None, logits: mx.array
    ) -> tuple[int, int, Logprobs | None]:
        """The same for a reply whose constraint needs each token before it can mask the next.

        Args:
            logits: [T, V].
        """
        for n, token in enumerate(fed):
            self._take(reply, token, logprobs)
            following = pick([reply], logits[n : n + 1])
            (logprobs,) = logprobs_for([reply], logits[n : n + 1], following)
            picked = cast(int, following.item())
            if reply.is_over or [picked] != list(fed[n + 1 : n + 2]):
                return n + 1, picked, logprobs
        raise AssertionError("no draft token follows the last one")

    # -- new tokens of a reply --------------------------------------------------------------------

    def _take(self, reply: Reply, token: int, logprobs: Logprobs | None) -> None:
        """Add ``token``, which was fed and stays, to ``reply``. A fault in parsing fails this reply alone."""
        self.has_grown |= reply.running.ids.append(token)
        try:
            self._grow(reply, token, logprobs)
        except BaseException as fault:
            reply.fail(fault)

    def _grow(self, reply: Reply, token: int, logprobs: Logprobs | None) -> None:
        is_stop = token in self._stop_ids
        if not is_stop:
            reply.unparsed_ids.append(token)
            if logprobs is not None:
                reply.unsent_logprobs[reply.n_tokens] = TokenLogprob(token, *logprobs.read())
        reply.token_ids.append(token)
        is_last = is_stop or reply.n_tokens >= reply.request.max_tokens
        if is_last or reply.parses_every_token:
            reply.parse()
            if is_stop or reply.reader.stopped:
                reply.end("stop")
            elif is_last:
                reply.end("length")
        self._outbox.hold(reply)

    def _keep_states(self, key: int, reply: Reply) -> None:
        """Keep a checkpoint here if one is due: the state represents exactly the tokens so far."""
        if reply.is_over:
            return
        if due_while_decoding(len(reply.running.ids), reply.newest_state):
            reply.running.capture(self._batch.snapshot(key))
            reply.newest_state = len(reply.running.ids)
            reply.drop_stop_state()
            self.has_grown = True
        elif reply.needs_stop_state:
            reply.keep_stop_state(self._batch.snapshot(key))
            self.has_grown = True


def _guarded(reply: Reply, act: Callable[[Speculation, A], T], argument: A) -> T | None:
    """Call ``act`` on the reply's speculation, if it has one. A fault there only ends its drafting."""
    if reply.speculation is None:
        return None
    try:
        return act(reply.speculation, argument)
    except Exception as fault:
        log.error("request %s goes on without drafts", reply.request.id, exc_info=fault)
        reply.speculation = None
        return None
