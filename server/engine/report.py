"""Between the prompt's words and the cache's: boundaries one way, a plan in words the other way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from cache.boundaries import FIRST_MARK, PromptShape
from cache.planner import FullRefill, ReplayFromCheckpoint, TokenIds
from cache.selection import Choice
from model.text.chat import RenderedPrompt
from server.events import Divergence, PlanReport


def prompt_shape(prompt: RenderedPrompt) -> PromptShape:
    """What the cache may know of a prompt beyond its ids.

    The last user query is the last user message before the first shared point: that point lies in
    the header of the first reply to it, whatever tool rounds follow.
    """
    before = bisect_left(
        prompt.message_starts, prompt.shared_points[0] if prompt.shared_points else len(prompt.ids)
    )
    queries = [
        start
        for start, role in zip(prompt.message_starts[:before], prompt.message_roles[:before], strict=True)
        if role == "user"
    ]
    return PromptShape(
        message_starts=prompt.message_starts,
        shared_points=prompt.shared_points,
        last_user_start=queries[-1] if queries else None,
        system_end=prompt.system_end,
        questions=tuple(
            start
            for start, role in zip(prompt.message_starts, prompt.message_roles, strict=True)
            if role == "user"
        ),
    )


def plan_report(
    choice: Choice, prompt: RenderedPrompt, decode: Callable[[Sequence[int]], str], n_adopted: int = 0
) -> PlanReport:
    """The ``crossturn`` object of a response. Call it before the choice is taken.

    Args:
        decode: ids to text.
        n_adopted: messages that keep the ids that were fed, see ``server/engine/fed_ids.py``.
    """
    plan = choice.plan

    def where(position: int) -> str:
        index = bisect_right(prompt.message_starts, position) - 1
        if index < 0:
            return f"token {position}, before the first message"
        return f"message {index} ({prompt.message_roles[index]}), at token {position}"

    plural = "s" if n_adopted > 1 else ""
    adopted = f" {n_adopted} message{plural} kept the ids that were fed." if n_adopted else ""
    return PlanReport(
        slot=str(choice.slot),
        mode=type(plan.mode).__name__,  # type: ignore[arg-type]
        prompt_tokens=len(prompt.ids),
        shared_tokens=plan.shared_token_prefix_len,
        reused_tokens=plan.reusable_len,
        read_ahead_tokens=_n_read_ahead(choice),
        prefilled_tokens=plan.suffix_len,
        checkpoint=plan.mode.checkpoint_len if isinstance(plan.mode, ReplayFromCheckpoint) else None,
        reason=reason(choice, where) + adopted,
        parent=None if choice.parent is None else f"{choice.parent.slot}/{choice.parent.number}",
        divergence=_divergence(choice, prompt, decode),
    )


def _n_read_ahead(choice: Choice) -> int:
    """Of the tokens that are reused, those that were read ahead, between two turns of the session."""
    source = choice.source
    if source is None or source.ahead_from is None or source.slot != choice.slot:
        return 0
    return max(0, choice.plan.reusable_len - source.ahead_from)


def _divergence(
    choice: Choice, prompt: RenderedPrompt, decode: Callable[[Sequence[int]], str]
) -> Divergence | None:
    at, source = choice.diverged_at, choice.source
    if at is None or source is None or source.slot != choice.slot:
        return None  # what another session said is told to nobody
    index = bisect_right(prompt.message_starts, at) - 1

    def around(ids: TokenIds) -> str:
        return decode([int(token) for token in ids[max(0, at - _BEFORE) : at + _BEHIND]])

    return Divergence(
        message=index,
        role=prompt.message_roles[index] if index >= 0 else "",
        is_last=index >= len(prompt.message_starts) - 2,
        kept=around(source.ids.view),
        sent=around(prompt.ids),
    )


_BEFORE, _BEHIND = 6, 14
"""Tokens shown before and from the first different one."""


def reason(choice: Choice, where: Callable[[int], str] = "token {}".format) -> str:
    """One sentence: what was reused and why no more.

    Args:
        where: names a position for a reader, e.g. ``message 4 (user)``.
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
        if choice.diverged_at < FIRST_MARK:
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
