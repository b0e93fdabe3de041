"""Log probabilities as bodies, and which of a reply's tokens have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model.text.deltas import ContentDelta
from server.events import Progress, TokenLogprob
from server.schema.replies import ContentLogprob, TopLogprob

_FLOOR = -9999.0
"""What OpenAI writes for a token that cannot be; JSON has no infinity."""


def floored(logprob: float) -> float:
    """``logprob`` as JSON can have it."""
    return max(logprob, _FLOOR)


class LogprobEncoder:
    """Encodes the log probabilities of one reply.

    Only the content's tokens have one: those of thoughts and calls belong to no text that a client sees.

    Args:
        token_bytes: the bytes that a token id stands for.
        in_content: whether the reply begins with content, not inside a thought.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, in_content: bool) -> None:
        self._token_bytes = token_bytes
        self._in_content = in_content

    def of(self, progress: Progress) -> list[ContentLogprob]:
        """The entries that ``progress`` brings. A token that is held back counts as what came before it."""
        if progress.deltas:
            self._in_content = isinstance(progress.deltas[-1], ContentDelta)
        return list(self._entries(progress)) if self._in_content else []

    def _entries(self, progress: Progress) -> Iterator[ContentLogprob]:
        for told in progress.logprobs:
            yield self._entry(told)

    def _entry(self, told: TokenLogprob) -> ContentLogprob:
        own = self._token(told.token_id, told.logprob)
        return ContentLogprob(**own, top_logprobs=[self._token(*pair) for pair in told.alternatives])

    def _token(self, token_id: int, logprob: float) -> TopLogprob:
        data = self._token_bytes(token_id)
        return TopLogprob(token=data.decode("utf-8", "replace"), logprob=floored(logprob), bytes=list(data))
