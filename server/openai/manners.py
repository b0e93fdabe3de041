"""How OpenAI's streams behave, whatever they tell."""

from __future__ import annotations

from server.errors import error_body
from server.http.stream import COMMENT, Frame
from server.turn.reply import Replies


class OpenAIManners:
    """The ground of this dialect's encoders: comments keep a stream alive, ``[DONE]`` ends it.

    Args:
        n: replies wanted.
    """

    keep_alive = COMMENT
    last = b"data: [DONE]\n\n"

    def __init__(self, n: int) -> None:
        self.replies = Replies(n)

    def failure(self, error: Exception) -> list[Frame]:
        """One frame with the error's body."""
        return [Frame(error_body(error))]
