"""Log probabilities of the text's tokens, as bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from server.events import TokenLogprob

_FLOOR = -9999.0
"""What OpenAI writes for a token that cannot be; JSON has no infinity."""


def logprob_bodies(told: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes]) -> list[dict[str, Any]]:
    """The entries of ``told``; ``token_bytes`` gives the bytes that a token id stands for."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        data = token_bytes(token_id)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": max(logprob, _FLOOR),
            "bytes": list(data),
        }

    return [
        {**token(one.token_id, one.logprob), "top_logprobs": [token(*pair) for pair in one.alternatives]}
        for one in told
    ]
