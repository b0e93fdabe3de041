"""The token counts of a request, and its plan, as bodies."""

from __future__ import annotations

from server.events import PlanReport
from server.openai.reply_schema import CompletionDetails, PlanBody, PromptDetails, Usage
from server.turn.reply import Replies


def usage_body(replies: Replies) -> Usage:
    """``cached_tokens`` are the prompt tokens that were not read again."""
    plans, finished = replies.plans, replies.ends
    n_prompt = sum(plan.prompt_tokens for plan in plans)
    n_reply = sum(reply.n_tokens for reply in finished)
    return Usage(
        prompt_tokens=n_prompt,
        completion_tokens=n_reply,
        total_tokens=n_prompt + n_reply,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(plan.reused_tokens for plan in plans)),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=sum(reply.n_reasoning_tokens for reply in finished)
        ),
    )


def plan_body(report: PlanReport) -> PlanBody:
    """``report`` as the ``crossturn`` object."""
    return PlanBody(
        slot=report.slot,
        mode=report.mode,
        prompt_tokens=report.prompt_tokens,
        shared_tokens=report.shared_tokens,
        reused_tokens=report.reused_tokens,
        prefilled_tokens=report.prefilled_tokens,
        checkpoint=report.checkpoint,
        reason=report.reason,
    )
