"""Log probabilities as bodies. Only content has them: thoughts and calls are no text that a client sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from server.events import TokenLogprob
from server.openai.reply_schema import ContentLogprob, TopLogprob

_FLOOR = -9999.0
"""What OpenAI writes for a token that cannot be; JSON has no infinity."""


def floored(logprob: float) -> float:
    """``logprob`` as JSON can have it."""
    return max(logprob, _FLOOR)


def logprob_bodies(told: Iterable[TokenLogprob], token_bytes: Callable[[int], bytes]) -> list[ContentLogprob]:
    """The entries of ``told``; ``token_bytes`` gives the bytes that a token id stands for."""

    def token(token_id: int, logprob: float) -> TopLogprob:
        data = token_bytes(token_id)
        return TopLogprob(token=data.decode("utf-8", "replace"), logprob=floored(logprob), bytes=list(data))

    return [
        ContentLogprob(
            **token(one.token_id, one.logprob), top_logprobs=[token(*pair) for pair in one.alternatives]
        )
        for one in told
    ]
