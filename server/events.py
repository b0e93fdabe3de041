"""What passes between the event loop and the engine thread: requests one way, events the other.

Every dialect is decoded into :class:`GenerationRequest` and encoded from :data:`Event`. Only ints, strings,
numpy ids and frozen dataclasses cross between the threads.
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
    """How the reply's tokens are parsed and constrained.

    Attributes:
        stops: stop strings, none of them empty; matched only in the content, after the thought.
        tools: the request's tool definitions; None switches the tool-call parser off.
        grammar: a grammar in llguidance's JSON form that the reply must match after its thought.
        max_thought_tokens: tokens after which an open thought is closed; None for no limit.
        min_tokens: the fewest tokens before the reply may end by itself.
        ignore_eos: whether the reply never ends by itself.
        may_think: False treats thought tags as text, as plain completions do.
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
    """One prompt, and how to generate the ``n_replies`` replies to it.

    Attributes:
        id: unique; the handle for :meth:`EngineClient.cancel`.
        slot: the session's private memory.
        prompt: ids and boundaries, see :class:`model.text.chat.RenderedPrompt`.
        max_tokens: the longest that a reply may become, already clamped to what the context leaves.
        prediction: uint32 [n], text that the reply is likely to contain; this can make decoding faster and
            never changes the reply.
        tells_prefill: whether to emit :class:`Prefilling` while the prompt is prefilled.
        top_logprobs: how many alternatives to report per token (0 to 20); None for no log probabilities.
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
    """The known beginning of a session's next prompt, to be prefilled while the engine is idle.

    It emits no events. What is fed when a client's request arrives is kept.

    Attributes:
        least_tokens: fewer than these are not worth feeding.
    """

    id: str
    slot: SlotKey
    prompt: RenderedPrompt
    least_tokens: int = 0


Prompted = GenerationRequest | WarmRequest
"""Whatever has a prompt to plan and prefill."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt diverged from what its session retains; for the session's owner only.

    Attributes:
        message: index of the message; -1 before the first.
        is_last: whether it is the last message before the reply's header.
        kept, sent: the text around the first different token, as retained and as sent.
    """

    message: int
    role: str
    is_last: bool
    kept: str
    sent: str


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What was reused for a prompt, and why no more. Without ``divergence`` it is the ``crossturn`` object of
    a response.

    Attributes:
        read_ahead_tokens: those of the reused tokens that were read ahead, between two turns of the session.
        parent: ``slot/entry`` of the conversation from which this one branches, if it does.
        eviction: when a state of the session was evicted that would have saved more, in a sentence, which
            ``reason`` has too; empty where none was.
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
    eviction: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probabilities (natural) of one sampled token and of its likeliest alternatives."""

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """The first event of an admitted request: its prompt is planned, and prefill begins."""

    report: PlanReport


@dataclass(frozen=True, slots=True)
class Prefilling:
    """The progress of a prefill, after each of its chunks, for requests that ask for it.

    Attributes:
        n_prompt: tokens of the prompt.
        n_reused: those of them that are reused.
        n_done: those that the state represents by now, the reused ones included.
        elapsed_s: seconds since the prefill began.
    """

    n_prompt: int
    n_reused: int
    n_done: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Reply ``index`` has ``n_tokens`` by now. ``deltas`` are empty while its new text is still ambiguous;
    ``logprobs`` are those of the content tokens in ``deltas``."""

    index: int
    deltas: tuple[Delta, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Reply ``index`` is complete; ``n_tokens`` counts its ``token_ids``, the stop token included.
    ``stop`` is the stop string that ended it, if one did. ``n_accepted`` of ``n_drafted`` drafted tokens were
    accepted and are part of it."""

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
    """The request ended early; no event follows.

    Attributes:
        kind: ``overloaded``: the server is full; ``rate_limited``: the tenant has used up its share;
            ``invalid``: the request is at fault.
        retry_after_s: when to try again; None if that does not help.
        param: the request field at fault, if one is.
    """

    message: str
    kind: Literal["cancelled", "overloaded", "rate_limited", "shutting_down", "invalid", "internal"]
    retry_after_s: float | None = None
    param: str | None = None


Event = Planned | Prefilling | Progress | Finished | Failed

Emit = Callable[[Event], None]
"""Takes the events of one request, in order; called on the engine thread, so it must not block or raise."""
