"""Chooses the next tokens of replies from the model's logits: constrains, samples, and verifies drafts.

Two constraints can override the model: a thought is closed when its budget is spent, and after the thought a
grammar masks what does not fit it. A reply with a grammar cannot end inside its thought: there an end token
is swapped for the tokens that close the thought, and the grammar begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from model.logits import Logprobs, logprobs_of
from model.sampling import Sampler, Swap, sample_rows
from model.text.grammar.masks import Grammar
from model.text.reply import ReplyReader

if TYPE_CHECKING:
    from server.engine.reply import Reply


@dataclass(frozen=True, slots=True)
class Checked:
    """The verified draft of one reply.

    Attributes:
        n_accepted: how many of its first tokens are accepted.
        token: the one that comes after those.
        logprobs: of each of them and of ``token``, if the client wants them.
    """

    n_accepted: int
    token: int
    logprobs: Sequence[Logprobs | None]


def pick(replies: Sequence[Reply], logits: mx.array) -> mx.array:
    """The next token of each reply, lazy uint32 [B], from its row of ``logits`` [B, V]. A reply for which
    none can be sampled fails, alone."""
    masks: list[mx.array | None] = [None] * len(replies)
    swaps: list[Swap | None] = [None] * len(replies)
    if any(reply.constraint is not None for reply in replies):
        masks = [_mask(reply, logits.shape[1]) for reply in replies]
        swaps = [None if reply.is_over else reply.swap for reply in replies]
    samplers = [reply.sampler for reply in replies]
    try:
        return sample_rows(samplers, logits, masks, swaps)
    except Exception:
        rows = zip(replies, mx.split(logits, len(replies)), masks, swaps, strict=True)
        return mx.concatenate([_pick_alone(*row) for row in rows])


def logprobs_for(replies: Sequence[Reply], logits: mx.array, tokens: mx.array) -> list[Logprobs | None]:
    """The log probabilities of ``tokens`` [B], one for each reply, from the rows of ``logits`` [B, V]; None
    for clients that do not want them."""
    return logprobs_of(logits, tokens, [reply.request.top_logprobs for reply in replies])


def check(replies: Sequence[Reply], drafts: Sequence[Sequence[int]], logits: mx.array) -> list[Checked]:
    """How much of the drafts of unconstrained replies is what would have been sampled without them.

    The token at each position is sampled from the logits after the draft up to there, with that position's
    own random number. The draft is accepted up to the first token that differs.

    Args:
        drafts: those of each reply; may be empty.
        logits: [B, T, V], after each reply's sampled token and each of its drafted ones.
    """
    samplers: list[Sampler] = []
    places: list[int] = []
    for row, (reply, draft) in enumerate(zip(replies, drafts, strict=True)):
        samplers += [reply.sampler.ahead(draft[:n]) for n in range(len(draft) + 1)]
        places += [row * logits.shape[1] + n for n in range(len(draft) + 1)]
    flat = logits.reshape(-1, logits.shape[2])
    rows = flat if len(places) == flat.shape[0] else flat[mx.array(places)]
    tokens = sample_rows(samplers, rows)
    n_tops = [
        reply.request.top_logprobs
        for reply, draft in zip(replies, drafts, strict=True)
        for _ in range(len(draft) + 1)
    ]
    logprobs = logprobs_of(rows, tokens, n_tops)
    picked = cast(list[int], tokens.tolist())
    checked, start = [], 0
    for reply, draft in zip(replies, drafts, strict=True):
        own = picked[start : start + len(draft) + 1]
        n_accepted = next((n for n, token in enumerate(draft) if token != own[n]), len(draft))
        reply.sampler = samplers[start + n_accepted]
        checked.append(Checked(n_accepted, own[n_accepted], logprobs[start : start + n_accepted + 1]))
        start += len(draft) + 1
    return checked


def _pick_alone(reply: Reply, logits: mx.array, mask: mx.array | None, swap: Swap | None) -> mx.array:
    """The next token of one reply, lazy uint32 [1]; if none can be sampled, the reply fails."""
    try:
        return sample_rows([reply.sampler], logits, [mask], [swap])
    except Exception as fault:
        reply.fail(fault)
        return mx.zeros((1,), mx.uint32)


def _mask(reply: Reply, vocab_size: int) -> mx.array | None:
    """Which tokens may come next, [V] bool; None if all may, or if the reply is over."""
    if reply.is_over:
        return None
    try:
        return reply.mask(vocab_size)
    except BaseException as fault:  # in the grammar: fails this reply alone
        reply.fail(fault)
        return None


class Constraint:
    """What the next token of one reply may be, by what its reader has parsed so far.

    Args:
        reader: has parsed every token before the next is masked.
        max_thought_tokens: tokens after which the thought is closed; None for no limit.
        closing_ids: the tokens that close it.
        grammar: what the content must match; None for anything.
        end_ids: the tokens that end a reply, or only the thought of one with a grammar.
    """

    def __init__(
        self,
        reader: ReplyReader,
        *,
        max_thought_tokens: int | None,
        closing_ids: Sequence[int],
        grammar: Grammar | None = None,
        end_ids: Sequence[int] = (),
    ) -> None:
        self._reader = reader
        self._max_thought_tokens = max_thought_tokens
        self._closing_ids = tuple(closing_ids)
        self._forced: list[int] = []
        self._grammar = grammar
        self._end_ids = mx.array(list(end_ids), dtype=mx.uint32)
        self._was_swapped: mx.array | None = None  # lazy bool, of the token sampled last
        self._n_accepted = 0

    def mask(self, vocab_size: int) -> mx.array | None:
        """Which tokens may come next, [V] bool; None if all may. Called once for each token."""
        if self._was_swapped is not None and self._was_swapped.item():
            self._forced = list(self._closing_ids[1:])
        elif not self._forced and self._is_spent():
            self._forced = list(self._closing_ids)
        self._was_swapped = None
        if self._forced:
            return mx.arange(vocab_size) == self._forced.pop(0)
        if self._grammar is None or self._reader.in_thought:
            return None
        for token_id in self._reader.content_ids[self._n_accepted :]:
            self._grammar.accept(token_id)
        self._n_accepted = len(self._reader.content_ids)
        return self._grammar.mask()

    def swap(self, token: mx.array) -> mx.array:
        """What is fed in place of ``token``, which was sampled under the last mask (lazy scalar)."""
        if self._grammar is None or not self._reader.in_thought:
            return token
        self._was_swapped = mx.any(token == self._end_ids)
        return mx.where(self._was_swapped, self._closing_ids[0], token).astype(token.dtype)

    def _is_spent(self) -> bool:
        budget = self._max_thought_tokens
        return budget is not None and self._reader.in_thought and self._reader.n_reasoning_tokens >= budget
