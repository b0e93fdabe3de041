"""What passes between the event loop and the engine thread: one request type, one family of events.

Every dialect (chat completions today, others later) is decoded into :class:`GenerationRequest` and
encoded from :data:`Event`. Only ints, strings, numpy ids and frozen dataclasses cross the border.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from cache.planner import SlotKey, TokenIds
from model.sampling import SamplingParams
from model.text.chat import RenderedPrompt
from model.text.deltas import Delta

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How the reply's tokens are read and constrained.

    Attributes:
        stops: stop strings, none of them empty; matched in the content only after the thought.
        tools: the request's tool definitions; None switches the tool-call parser off.
        grammar: a grammar in llguidance's JSON form that the reply after the thought must match.
        max_thought_tokens: close an open thought after so many tokens; None for no limit.
        min_tokens: before so many tokens the reply does not end by itself.
        ignore_eos: the reply never ends by itself.
        may_think: False reads thought tags as text (plain completions).
    """

    stops: tuple[str, ...] = ()
    tools: tuple[dict[str, object], ...] | None = None
    grammar: str | None = None
    max_thought_tokens: int | None = None
    may_think: bool = True
    min_tokens: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and the ``n_replies`` replies wanted of it.

    Attributes:
        id: unique; the handle for :meth:`EngineClient.cancel`.
        slot: the session's private memory, of its tenant.
        prompt: ids and boundaries, see :class:`model.text.chat.RenderedPrompt`.
        max_tokens: reply tokens at most, already clamped to what the context leaves.
        prediction: uint32 [n], text that the reply may turn out to be, in whole or in parts; it may be
            written faster for that, and is the same.
        tells_prefill: whether :class:`Prefilling` is told while the prompt is read.
        top_logprobs: None for no logprobs, else how many alternatives to report per token (0 to 20).
    """

    id: str
    slot: SlotKey
    prompt: RenderedPrompt
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    reply: ReplyFormat = field(default_factory=ReplyFormat)
    n_replies: int = 1
    top_logprobs: int | None = None
    tells_prefill: bool = False
    prediction: TokenIds | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """Read ahead, when nothing else waits, what the next prompt of a session is known to begin with.

    No events come of it. Whatever it has read when a real request arrives is kept.
    """

    id: str
    slot: SlotKey
    prompt: RenderedPrompt


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt parted from what its own session retains. For the session's owner alone.

    Attributes:
        message: index of the message, -1 before the first.
        is_last: whether that is the last message that is not the reply's header.
        kept, sent: the text around the first different token, as it was fed and as it came now.
    """

    message: int
    role: str
    is_last: bool
    kept: str
    sent: str


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What was reused for a prompt, and why no more; the ``crossturn`` object of a response, which leaves
    ``divergence`` out.

    Attributes:
        read_ahead_tokens: of the reused ones, those that were read between two turns of the session.
        parent: ``slot/entry`` of the conversation that this one branches off, if it does.
    """

    slot: str
    mode: Literal["ExactAppend", "ReplayFromCheckpoint", "FullRefill"]
    prompt_tokens: int
    shared_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    checkpoint: int | None
    reason: str
    read_ahead_tokens: int = 0
    parent: str | None = None
    divergence: Divergence | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of one sampled token and of its likeliest alternatives (natural log)."""

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """The prompt was planned; prefill begins. First event of a request that is admitted."""

    report: PlanReport


@dataclass(frozen=True, slots=True)
class Prefilling:
    """How far the prompt is read; told after every part of it to requests that ask for it.

    Attributes:
        n_prompt: tokens of the prompt.
        n_reused: those that need not be read.
        n_done: those that the state stands for by now, the reused ones included.
        elapsed_s: since reading began.
    """

    n_prompt: int
    n_reused: int
    n_done: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Reply ``index`` grew to ``n_tokens``. There are no ``deltas`` as long as its text may still mean
    something else. ``logprobs`` belong to the content tokens of these deltas."""

    index: int
    deltas: tuple[Delta, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Reply ``index`` is complete; ``n_tokens`` counts its ``token_ids``, the stop token included.
    ``stop`` is the stop string that ended it, if one did. Of ``n_drafted`` tokens that were guessed
    ahead ``n_accepted`` came true and are part of it."""

    index: int
    reason: FinishReason
    n_tokens: int
    n_reasoning_tokens: int
    token_ids: tuple[int, ...] = field(default=(), repr=False)
    stop: str | None = None
    n_drafted: int = field(default=0, compare=False)
    n_accepted: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended early; nothing follows.

    Attributes:
        kind: ``overloaded``: the server is full; ``rate_limited``: the tenant has had its share; ``invalid``:
            the request cannot be done.
        retry_after_s: set when trying again helps.
        param: the request field at fault, where one is.
    """

    message: str
    kind: Literal["cancelled", "overloaded", "rate_limited", "shutting_down", "invalid", "internal"]
    retry_after_s: float | None = None
    param: str | None = None


Event = Planned | Prefilling | Progress | Finished | Failed

Emit = Callable[[Event], None]
"""Takes the events of one request, in order, on the engine thread; must not block or raise."""
