"""Chooses the next tokens of replies from the model's logits: masks, samples, and verifies drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from model.logits import Logprobs, logprobs_of
from model.sampling import Sampler, Swap, sample_rows
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
