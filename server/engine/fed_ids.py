"""A message that a client sends back as text may be tokenised otherwise than it was written.

The model wrote ``hel|lo``, the tokenizer reads the same text as ``hello``: the ids part, although no
letter does. With this switch on, such a message keeps the ids that were fed. The reply then is the
one that a fresh process gives on those same ids, and the plan says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cache.planner import TokenIds, longest_common_token_prefix
from model.text.chat import RenderedPrompt
from model.text.tokenizer import TextTokenizer


def adopt_fed_ids(
    prompt: RenderedPrompt,
    fed: TokenIds,
    tokenizer: TextTokenizer,
    *,
    end_ids: frozenset[int],
    max_tokens: int,
) -> tuple[RenderedPrompt, int]:
    """``prompt`` with the ids of ``fed`` for messages that read the same.

    Args:
        prompt: as it was rendered.
        fed: uint32 [m], the ids of a remembered conversation.
        end_ids: control tokens that close a message.
        max_tokens: the prompt may not grow beyond this.

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
    """The position after the token that closes the message in which ``parted`` lies."""
    closers = np.flatnonzero(np.isin(ids[parted:], list(end_ids)))
    return None if len(closers) == 0 else parted + int(closers[0]) + 1


def _reading(ids: TokenIds, tokenizer: TextTokenizer) -> list[int | bytes]:
    """Text runs as bytes, control tokens as ids: a control token never equals the text of its name."""
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
    """``prompt`` with ``ids`` in the place of its tokens from ``start`` to ``end``."""
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
