"""How much the engine takes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How much the loop takes on.

    Attributes:
        max_replies: replies written together at most; further requests wait.
        max_waiting: requests that may wait; one more is refused as overload.
        max_wait_s: a request that has waited so long for its turn is refused as overload; None lets it wait.
        max_tenant_replies: of ``max_replies``, what the requests of one tenant may take; None for all.
        max_tenant_waiting: of ``max_waiting``, what the requests of one tenant may take; None for all.
        tenant_tokens_per_minute: tokens, read and written, that one tenant is served a minute; a request
            beyond that is refused. None for no limit.
        prefill_tokens: tokens prefilled in one step while nothing is being decoded; None for what takes
            about a second.
        shared_prefill_tokens: the same while replies are being decoded, whose pause it bounds; None
            for what takes a quarter of one.
        reads_ahead: whether the known part of the next prompt is prefilled in idle time.
        drafts: whether replies are written several tokens at a time where those can be guessed.
        keeps_fed_ids: whether a message that reads the same keeps the ids that were fed for it.
        stream_interval_s: how long a reply's text may wait for more before it is handed over; 0 hands over
            every token at once.
        checks_store: assert the store's invariants whenever the loop falls idle.
    """

    max_replies: int = 16
    max_waiting: int = 256
    max_wait_s: float | None = None
    max_tenant_replies: int | None = None
    max_tenant_waiting: int | None = None
    tenant_tokens_per_minute: int | None = None
    prefill_tokens: int | None = None
    shared_prefill_tokens: int | None = None
    reads_ahead: bool = True
    drafts: bool = True
    keeps_fed_ids: bool = False
    stream_interval_s: float = 0.0
    checks_store: bool = False
