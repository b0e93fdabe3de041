"""Chooses which retained state a prompt continues from, and explains the choice to the client.

A message that a client sends back as text may be tokenized differently from how it was generated. The model
wrote ``hel|lo``, the tokenizer splits the same text as ``hello``: the ids differ although no letter does. If
the operator allows it, such a message keeps the ids that were fed. The reply then is the one that a fresh
process gives to those same ids, and the plan says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cache.boundaries import FIRST_MARK, PromptShape
from cache.planner import FullRefill, ReplayFromCheckpoint, TokenIds, longest_common_token_prefix
from cache.selection import Choice
from cache.store import Store
from model.text.chat import RenderedPrompt
from model.text.tokenizer import TextTokenizer
from server.events import Divergence, PlanReport, Prompted, WarmRequest

_CONTEXT_TOKENS = 32
"""Tokens before the divergence that are quoted along, so that lookup finds the place."""

_BEFORE, _BEHIND = 6, 14
"""Tokens shown before the first different one, and from it on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for one prompt.

    Attributes:
        prompt: the prompt, in which messages with the same text keep the ids that were fed, if allowed.
        choice: what the store will do; valid until the store next changes.
        report: the same for the client.
        quotes: uint32 arrays; texts other than the prompt that the reply may quote.
    """

    prompt: RenderedPrompt
    choice: Choice
    report: PlanReport
    quotes: tuple[TokenIds, ...]


class Planner:
    """Plans prompts over the store.

    Args:
        keeps_fed_ids: whether a message with the same text keeps the ids that were fed for it.
        end_ids: token ids that end a message.
    """

    def __init__(
        self, store: Store, tokenizer: TextTokenizer, end_ids: frozenset[int], *, keeps_fed_ids: bool
    ) -> None:
        self._store = store
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._keeps_fed_ids = keeps_fed_ids

    def plan(self, request: Prompted) -> Plan:
        """Recall from disk what helps, and choose. Nothing is taken from the store yet."""
        self._store.recall(request.slot, request.prompt.ids)
        prompt, n_adopted = request.prompt, 0
        choice = self._choose(request, prompt)
        if self._keeps_fed_ids and choice.source is not None and choice.diverged_at is not None:
            prompt, n_adopted = adopt_fed_ids(
                prompt,
                choice.source.ids.view,
                self._tokenizer,
                end_ids=self._end_ids,
                max_tokens=self._store.metadata.max_cache_len - 1,
            )
            choice = self._choose(request, prompt)
        report = plan_report(choice, prompt, self._tokenizer.decode, n_adopted, self._store.loss(choice))
        return Plan(prompt, choice, report, _left_behind(choice))

    def n_suffix(self, request: Prompted) -> int:
        """How many tokens of the prompt must be fed, without a look at the disk."""
        return self._choose(request, request.prompt).plan.suffix_len

    def _choose(self, request: Prompted, prompt: RenderedPrompt) -> Choice:
        is_guess = isinstance(request, WarmRequest)
        return self._store.plan(request.slot, prompt.ids, prompt_shape(prompt), is_guess=is_guess)


def _left_behind(choice: Choice) -> tuple[TokenIds, ...]:
    """What the prompt abandons of its own session's conversation: a reply that is generated anew, a thought
    that was stripped. Nothing of other sessions, because the time that accepted drafts save would reveal
    it."""
    if choice.source is None or choice.source.slot != choice.slot:
        return ()
    start = max(choice.plan.shared_token_prefix_len - _CONTEXT_TOKENS, 0)
    return (choice.source.ids.view[start:].copy(),)


def prompt_shape(prompt: RenderedPrompt) -> PromptShape:
    """What the cache may know about a prompt beyond its ids.

    The last user query is the last user message before the first shared point, which lies in the header of
    the first reply to that query, however many tool calls follow.
    """
    messages = zip(prompt.message_starts, prompt.message_roles, strict=True)
    questions = tuple(start for start, role in messages if role == "user")
    first_shared = prompt.shared_points[0] if prompt.shared_points else len(prompt.ids)
    return PromptShape(
        message_starts=prompt.message_starts,
        shared_points=prompt.shared_points,
        last_user_start=max((start for start in questions if start < first_shared), default=None),
        system_end=prompt.system_end,
        questions=questions,
    )


# -- the choice in words ----------------------------------------------------------------------------


def plan_report(
    choice: Choice,
    prompt: RenderedPrompt,
    decode: Callable[[Sequence[int]], str],
    n_adopted: int = 0,
    loss: tuple[int, float] | None = None,
) -> PlanReport:
    """``choice`` as the client sees it; to be called before the choice is taken.

    Args:
        decode: ids to text.
        n_adopted: how many messages keep the ids that were fed, see :func:`adopt_fed_ids`.
        loss: the state that would have saved more, and when it was evicted, see :meth:`Store.loss`.
    """
    plan = choice.plan

    def where(position: int) -> str:
        index = bisect_right(prompt.message_starts, position) - 1
        if index < 0:
            return f"token {position}, before the first message"
        return f"message {index} ({prompt.message_roles[index]}), at token {position}"

    plural = "s" if n_adopted > 1 else ""
    adopted = f" {n_adopted} message{plural} kept the ids that were fed." if n_adopted else ""
    eviction = "" if loss is None else _eviction(*loss, n_reused=plan.reusable_len)
    return PlanReport(
        slot=str(choice.slot),
        mode=type(plan.mode).__name__,  # type: ignore[arg-type]
        prompt_tokens=len(prompt.ids),
        shared_tokens=plan.shared_token_prefix_len,
        reused_tokens=plan.reusable_len,
        read_ahead_tokens=_n_read_ahead(choice),
        prefilled_tokens=plan.suffix_len,
        checkpoint=plan.mode.checkpoint_len if isinstance(plan.mode, ReplayFromCheckpoint) else None,
        reason=f"{reason(choice, where)}{adopted} {eviction}".rstrip(),
        parent=None if choice.parent is None else f"{choice.parent.slot}/{choice.parent.number}",
        divergence=_divergence(choice, prompt, decode),
        eviction=eviction,
    )


def _eviction(length: int, ago_s: float, *, n_reused: int) -> str:
    return (
        f"The state after token {length}, which would have saved {length - n_reused} tokens, was evicted "
        f"{_duration(ago_s)} ago to make room."
    )


def _duration(seconds: float) -> str:
    for unit, n in (("h", 3600), ("min", 60)):
        if seconds >= 2 * n:
            return f"{seconds / n:.0f} {unit}"
    return f"{seconds:.0f} s"


def _n_read_ahead(choice: Choice) -> int:
    """How many of the reused tokens were read ahead, between two turns of the session."""
    source = choice.source
    if source is None or source.ahead_from is None or source.slot != choice.slot:
        return 0
    return max(0, choice.plan.reusable_len - source.ahead_from)


def _divergence(
    choice: Choice, prompt: RenderedPrompt, decode: Callable[[Sequence[int]], str]
) -> Divergence | None:
    at, source = choice.diverged_at, choice.source
    if at is None or source is None or source.slot != choice.slot:
        return None  # what another session said stays private
    if at in source.next_points:
        return None  # the template strips a thought there, and the client changed nothing
    index = bisect_right(prompt.message_starts, at) - 1

    def around(ids: TokenIds) -> str:
        return decode(ids[max(0, at - _BEFORE) : at + _BEHIND].tolist())

    return Divergence(
        message=index,
        role=prompt.message_roles[index] if index >= 0 else "",
        is_last=index >= len(prompt.message_starts) - 2,
        kept=around(source.ids.view),
        sent=around(prompt.ids),
    )


def reason(choice: Choice, where: Callable[[int], str] = "token {}".format) -> str:
    """One sentence that says what was reused, and why no more.

    Args:
        where: describes a position, e.g. ``message 4 (user)``.
    """
    plan = choice.plan
    if plan.mismatch is not None:
        return f"The retained entry has another {plan.mismatch}, so nothing of it can be reused."
    if choice.source is None:
        return "Nothing is retained for this session yet."
    if choice.origin == "kindred":
        return f"{plan.reusable_len} tokens are reused, copied from a conversation of another session."
    if choice.origin == "shared":
        return f"{plan.reusable_len} tokens are reused, copied from the system prompt of another session."
    if plan.shared_token_prefix_len == 0:
        return "The prompt differs from everything retained at its first token."
    if choice.diverged_at is not None:
        left = f"The prompt leaves the retained entry in {where(choice.diverged_at)}"
        if choice.diverged_at < FIRST_MARK and isinstance(plan.mode, FullRefill):
            return f"{left}, so near its beginning that no state before it could save anything."
        return f"{left}; {_reused(choice)}."
    if plan.shared_token_prefix_len == len(choice.prompt_ids):
        return f"The whole prompt is retained, and its last token must be fed anew; {_reused(choice)}."
    return f"The prompt continues the retained entry; {_reused(choice)}."


def _reused(choice: Choice) -> str:
    if isinstance(choice.plan.mode, FullRefill):
        return "no checkpoint lies before that point"
    whence = ", copied from a request that still runs" if choice.origin == "running" else ""
    if choice.parent is not None and not whence:
        whence = f", copied from entry {choice.parent.number}, which goes on"
    return f"{choice.plan.reusable_len} tokens are reused{whence}"


# -- messages that keep the ids that were fed -------------------------------------------------------


def adopt_fed_ids(
    prompt: RenderedPrompt,
    fed: TokenIds,
    tokenizer: TextTokenizer,
    *,
    end_ids: frozenset[int],
    max_tokens: int,
) -> tuple[RenderedPrompt, int]:
    """``prompt`` with the ids of ``fed`` in messages that have the same text.

    Args:
        prompt: as rendered.
        fed: uint32 [m], the ids of a retained conversation.
        end_ids: control tokens that end a message.
        max_tokens: the longest that the prompt may become.

    Returns:
        the prompt, and how many messages keep the ids that were fed.
    """
    n_adopted = 0
    while True:
        parted = longest_common_token_prefix(prompt.ids, fed)
        start = max((s for s in prompt.message_starts if s <= parted), default=0)
        ours, theirs = _message_end(prompt.ids, parted, end_ids), _message_end(fed, parted, end_ids)
        if ours is None or theirs is None or len(prompt.ids) + theirs - ours > max_tokens:
            return prompt, n_adopted
        if _reading(prompt.ids[start:ours], tokenizer) != _reading(fed[start:theirs], tokenizer):
            return prompt, n_adopted
        prompt = _spliced(prompt, fed[start:theirs], start, ours)
        n_adopted += 1


def _message_end(ids: TokenIds, parted: int, end_ids: frozenset[int]) -> int | None:
    """The position after the token that ends the message around position ``parted``; None if nothing does."""
    closers = np.flatnonzero(np.isin(ids[parted:], list(end_ids)))
    return None if len(closers) == 0 else parted + int(closers[0]) + 1


def _reading(ids: TokenIds, tokenizer: TextTokenizer) -> list[int | bytes]:
    """Runs of text as bytes, control tokens as ids: a control token never equals the text of its name."""
    controls = {token.id for token in tokenizer.controls.values()}
    reading: list[int | bytes] = []
    for token in ids.tolist():
        if token in controls:
            reading.append(token)
        elif reading and isinstance(reading[-1], bytes):
            reading[-1] += tokenizer.token_bytes(token)
        else:
            reading.append(tokenizer.token_bytes(token))
    return reading


def _spliced(prompt: RenderedPrompt, ids: TokenIds, start: int, end: int) -> RenderedPrompt:
    """``prompt`` with ``ids`` in place of its tokens in [start, end)."""
    shift = len(ids) - (end - start)

    def moved(position: int) -> int:
        return position if position <= start else position + shift

    return replace(
        prompt,
        ids=np.concatenate([prompt.ids[:start], ids, prompt.ids[end:]]),
        message_starts=tuple(map(moved, prompt.message_starts)),
        shared_points=tuple(moved(p) for p in prompt.shared_points if not start < p < end),
        system_end=moved(prompt.system_end),
    )
