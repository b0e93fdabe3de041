"""The multi-token prediction head beside a model's passes: it is shown what they made, and guesses on.

Its rows lag behind a decoding batch: what plain steps made is kept aside until a guess, a checkpoint or the
end of a reply asks for rows, so that those steps take no longer than without a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from model.layers.attention import StepGroup
from model.layers.mtp import MtpHead
from model.state import MtpRows

_MOST_PENDING = 64
"""Tokens of each sequence that may wait for their rows."""


def append(head: MtpHead, rows: MtpRows, ids: mx.array, hidden: mx.array) -> None:
    """Append the rows of T tokens that the model was fed, lazily; ``rows.hidden`` is still that before them.

    Args:
        rows: of the sequence before these tokens.
        ids: [1, T].
        hidden: what the model made of them, [1, T, H] after its last norm.
    """
    before = hidden[:, :-1]
    if rows.hidden is None:
        ids = ids[:, 1:]
    else:
        before = mx.concatenate([rows.hidden, before], axis=1)
    if ids.shape[1]:
        rows.kv.push(*head.rows(ids, before, rows.kv.length))


@dataclass(frozen=True, slots=True)
class _Fed:
    """Tokens that a batch was fed.

    Attributes:
        ids: [B, T].
        hidden: [B, T, H].
        n_kept: of each sequence, how many stayed.
    """

    ids: mx.array
    hidden: mx.array
    n_kept: Sequence[int]


class MtpBatch:
    """What the head remembers of the sequences of a batch, each in buffers of its own.

    Args:
        head: the head.
        logits: rows [..., H] to logits [..., V], the model's.
    """

    def __init__(self, head: MtpHead, logits: Callable[[mx.array], mx.array]) -> None:
        self._head = head
        self._logits = logits
        self._rows: dict[int, MtpRows] = {}  # by key
        self._pending: list[_Fed] = []
        self._keys: tuple[int, ...] = ()  # the sequences of what is pending

    def join(self, key: int, rows: MtpRows) -> None:
        """Take over the rows of sequence ``key``."""
        self._rows[key] = rows

    def leave(self, key: int) -> MtpRows:
        """Give back the rows of sequence ``key``, up to date."""
        self.settle()
        return self._rows.pop(key)

    def n_bytes_of(self, key: int) -> int:
        """Bytes held for sequence ``key``."""
        return self._rows[key].n_bytes

    def hidden(self, key: int) -> mx.array | None:
        """What the model made of the last token of sequence ``key``, [1, 1, H]."""
        self.settle()
        return self._rows[key].hidden

    def copy(self, key: int, n_tokens: int, hidden: mx.array | None) -> MtpRows:
        """The rows of the first ``n_tokens`` tokens of sequence ``key``; see :meth:`MtpRows.copy`."""
        self.settle()
        return self._rows[key].copy(n_tokens, hidden)

    def note(self, keys: Sequence[int], ids: mx.array, hidden: mx.array, n_kept: Sequence[int]) -> bool:
        """The model was fed T tokens of each of the sequences ``keys``.

        Args:
            ids: [B, T].
            hidden: what it made of them, [B, T, H] after its last norm; may be lazy.
            n_kept: of each sequence, how many stayed, at least one.

        Returns:
            whether rows were made, which may have taken memory.
        """
        are_others = self._keys != tuple(keys)
        if are_others:
            self.settle()
            self._keys = tuple(keys)
        self._pending.append(_Fed(ids, hidden, n_kept))
        are_many = sum(fed.ids.shape[1] for fed in self._pending) >= _MOST_PENDING
        if are_many:
            self.settle()
        return are_others or are_many

    def settle(self) -> None:
        """Make the rows of all tokens that were fed."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        rows = [self._rows[key] for key in self._keys]
        ids = mx.concatenate([fed.ids for fed in pending], axis=1)
        nothing = mx.zeros_like(pending[0].hidden[:1, :1])
        first = mx.concatenate([nothing if own.hidden is None else own.hidden for own in rows])
        hidden = mx.concatenate([first, *(fed.hidden for fed in pending)], axis=1)  # one more than ids
        kept = [_places(pending, row) for row in range(len(rows))]
        if any(len(own) < ids.shape[1] for own in kept):
            longest = max(map(len, kept))
            padded = [own + own[-1:] * (longest - len(own)) for own in kept]
            ids = mx.take_along_axis(ids, mx.array(padded), axis=1)
            places = mx.array([[0, *(1 + place for place in own)] for own in padded])
            hidden = mx.take_along_axis(hidden, places[..., None], axis=1)
        # A token whose predecessor is not known gets a row in front of the others, which is left out.
        n_skipped = [int(own.hidden is None) for own in rows]
        offset = mx.array([own.kv.length - n for own, n in zip(rows, n_skipped, strict=True)])
        keys, values = self._head.rows(ids, hidden[:, :-1], offset)
        for row, (own, places_kept, skipped) in enumerate(zip(rows, kept, n_skipped, strict=True)):
            n = len(places_kept)
            if n > skipped:
                own.kv.push(keys[row : row + 1, :, skipped:n], values[row : row + 1, :, skipped:n])
            own.hidden = mx.contiguous(hidden[row : row + 1, n : n + 1])
        mx.async_eval(*(array for own in rows for array in own.arrays))  # type: ignore[no-untyped-call]

    def guess(self, keys: Sequence[int], tokens: mx.array, n_tokens: int) -> mx.array:
        """The tokens that are likely to follow.

        Args:
            keys: of the sequences to guess for, each of which was fed something.
            tokens: [b], sampled for them and not fed yet.
            n_tokens: how many to guess for each.

        Returns:
            ids [b, n_tokens], lazy.
        """
        self.settle()
        rows = [self._rows[key] for key in keys]
        lengths = [own.kv.length for own in rows]
        known = [own.hidden for own in rows if own.hidden is not None]
        assert len(known) == len(rows), "nothing was fed to a sequence yet"
        hidden, guessed = mx.concatenate(known), [tokens]
        members = [mx.array([row]) for row in range(len(rows))]
        try:
            for _ in range(n_tokens):
                groups = [
                    StepGroup(member, [own.kv], own.kv.length, None)
                    for member, own in zip(members, rows, strict=True)
                ]
                hidden = self._head.step(guessed[-1][:, None], hidden, groups)
                guessed.append(mx.argmax(self._logits(hidden)[:, 0], axis=-1).astype(mx.uint32))
        finally:
            for own, length in zip(rows, lengths, strict=True):
                own.kv.truncate(length)
        return mx.stack(guessed[1:], axis=1)


def _places(pending: Sequence[_Fed], row: int) -> list[int]:
    """Where the tokens that sequence ``row`` kept stand among those of all ``pending``, laid end to end."""
    places: list[int] = []
    start = 0
    for fed in pending:
        places += range(start, start + fed.n_kept[row])
        start += fed.ids.shape[1]
    return places
