"""The replies that are being written together: one token for each of them at every step.

The order inside a step is what makes it fast. The model's next pass is launched with the tokens
just sampled, still unread, and only then are those tokens synced, parsed and emitted: text is handled
while the device computes. So when a reply turns out to be over, its last token has been fed: the
state of a finished reply stands for all of its tokens, the stop token included.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import cast

import mlx.core as mx

from cache.boundaries import due_while_decoding
from model.batch import DecodeBatch
from model.forward import Forward
from model.logprobs import Logprobs, logprobs_of
from model.sampling import Swap, sample_rows
from model.state import Checkpoint, State
from server.engine.outbox import Outbox
from server.engine.reply import Reply
from server.events import TokenLogprob


class _Row:
    """Answers for a state that stands in the batch (``cache.entry.LentState``)."""

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
        outbox: is told which replies grow.

    Attributes:
        replies: those that are being written, in the order of the batch's rows.
        has_grown: the last step may have taken more memory.
    """

    def __init__(self, forward: Forward, stop_ids: frozenset[int], outbox: Outbox) -> None:
        self._outbox = outbox
        self._stop_ids = stop_ids
        self._forward = forward
        self._batch = forward.new_batch()
        self.has_grown = False
        self._replies: dict[int, Reply] = {}  # by batch key
        self._regroup()
        self._sampled: mx.array | None = None  # [B] uint32, one for each row, not yet fed
        self._logprobs: dict[int, Logprobs] = {}  # by batch key, of the tokens in _sampled
        self._keys = count()

    def _regroup(self) -> None:
        """Note what the replies have in common, once for all the steps that they make together."""
        self.replies: tuple[Reply, ...] = tuple(self._replies.values())
        self._are_constrained = any(reply.constraint is not None for reply in self.replies)
        self._have_logprobs = any(reply.request.top_logprobs is not None for reply in self.replies)

    def join(self, reply: Reply, logits: mx.array) -> None:
        """Begin writing ``reply`` from its prompt's last ``logits``, [V]. What raises changes nothing."""
        key = next(self._keys)
        token = self._pick([reply], logits[None])[0]
        if reply.fault is not None:
            raise reply.fault
        if reply.request.top_logprobs is not None:
            self._logprobs[key] = logprobs_of(logits, token, reply.request.top_logprobs)
        token = token.reshape(1)
        if reply.has_stops:
            reply.keep_stop_state(reply.running.state.snapshot())
        self._batch.join(key, cast(State, reply.running.lend(_Row(self._batch, key))))
        self._replies[key] = reply
        self._regroup()
        self._sampled = token if self._sampled is None else mx.concatenate([self._sampled, token])

    def step(self) -> list[Reply]:
        """Feed the sampled tokens, sample the next ones, sync and emit the former.

        Returns:
            the replies that are over; they have left the batch with their states.
        """
        assert self._sampled is not None
        fed, fed_logprobs = self._sampled, self._logprobs
        logits = self._batch.step(fed)  # [B, V]
        self.has_grown = self._batch.has_grown
        if self._are_constrained:
            # A constraint must have seen the token just fed before it can judge the next one.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            self._sync(fed, fed_logprobs)
            self._sample(logits)
        else:
            self._sample(logits)
            self._sync(fed, fed_logprobs)
        return [self.leave(reply) for reply in self.replies if reply.is_over]

    def leave(self, reply: Reply) -> Reply:
        """Take a reply out of the batch, its state back in its entry, cut where a stop string cut it."""
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

    def abandon(self) -> list[Reply]:
        """After a failed step nothing in the batch can be trusted: forget it.

        Returns:
            the replies that were being written; their entries have lost their states.
        """
        replies = list(self.replies)
        self._batch = self._forward.new_batch()
        self._replies, self._sampled, self._logprobs = {}, None, {}
        self._regroup()
        return replies

    def _sample(self, logits: mx.array) -> None:
        sampled = self._pick(self.replies, logits)
        self._sampled, self._logprobs = sampled, {}
        if self._have_logprobs:
            self._logprobs = {
                key: logprobs_of(logits[row], sampled[row], reply.request.top_logprobs)
                for row, (key, reply) in enumerate(self._replies.items())
                if reply.request.top_logprobs is not None
            }
        mx.async_eval(sampled, *(array for item in self._logprobs.values() for array in item.arrays))  # type: ignore[no-untyped-call]

    def _pick(self, replies: Sequence[Reply], logits: mx.array) -> mx.array:
        """The next token of each reply, lazy uint32 [B], from its row of ``logits`` [B, V]. Where one cannot
        be picked, that reply fails."""
        masks: list[mx.array | None] = [None] * len(replies)
        swaps: list[Swap | None] = [None] * len(replies)
        if any(reply.constraint is not None for reply in replies):
            masks = [_mask(reply, logits.shape[1]) for reply in replies]
            swaps = [None if reply.is_over else reply.swap for reply in replies]
        samplers = [reply.sampler for reply in replies]
        try:
            return sample_rows(samplers, logits, masks, swaps)
        except Exception:
            return mx.concatenate(
                [
                    _pick_alone(reply, row, mask, swap)
                    for reply, row, mask, swap in zip(
                        replies, mx.split(logits, len(replies)), masks, swaps, strict=True
                    )
                ]
            )

    def _sync(self, fed: mx.array, logprobs: dict[int, Logprobs]) -> None:
        """Wait for the tokens that were fed, [B]; the replies grow by them."""
        tokens = cast(list[int], fed.tolist())
        for token, (key, reply) in zip(tokens, self._replies.items(), strict=True):
            ids = reply.running.ids
            self.has_grown |= ids.append(token)
            try:
                self._grow(reply, token, logprobs.get(key))
            except BaseException as fault:  # of the text side: this reply's alone
                reply.fail(fault)
            if not reply.is_over:
                self._keep_states(key, reply)
        self._outbox.end_step()

    def _grow(self, reply: Reply, token: int, logprobs: Logprobs | None) -> None:
        is_stop = token in self._stop_ids
        if not is_stop:
            reply.unread_ids.append(token)
            if logprobs is not None:
                reply.untold_logprobs[reply.n_tokens] = TokenLogprob(token, *logprobs.read())
        reply.token_ids.append(token)
        is_last = is_stop or reply.n_tokens >= reply.request.max_tokens
        if is_last or reply.reads_every_token:
            reply.read()
            if is_stop or reply.reader.stopped:
                reply.end("stop")
            elif is_last:
                reply.end("length")
        self._outbox.grow(reply)

    def _keep_states(self, key: int, reply: Reply) -> None:
        """Keep the state here if one is due: the batch has just been fed the reply's last token."""
        if due_while_decoding(len(reply.running.ids), reply.newest_state):
            reply.running.capture(self._batch.snapshot(key))
            reply.newest_state = len(reply.running.ids)
            reply.drop_stop_state()
            self.has_grown = True
        elif reply.wants_stop_state:
            reply.keep_stop_state(self._batch.snapshot(key))
            self.has_grown = True


def _pick_alone(reply: Reply, logits: mx.array, mask: mx.array | None, swap: Swap | None) -> mx.array:
    """The next token of one reply, lazy uint32 [1]; where it cannot be picked, the reply fails."""
    try:
        return sample_rows([reply.sampler], logits, [mask], [swap])
    except Exception as fault:
        reply.fail(fault)
        return mx.zeros((1,), mx.uint32)


def _mask(reply: Reply, vocab_size: int) -> mx.array | None:
    """Which tokens may come next, [V] bool; None when all may, or when the reply is over."""
    if reply.is_over:
        return None
    try:
        return reply.mask(vocab_size)
    except BaseException as fault:  # of the grammar: this reply's alone
        reply.fail(fault)
        return None
