"""How many values a JSON body has, told before it is parsed.

A body of 32 MiB that is one text costs little to parse; one of sixteen million numbers takes a gigabyte, and
seconds in which the interpreter does nothing else. So values are counted first: in chunks, so that it takes
little memory, and by numpy, which lets other threads run meanwhile.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_VALUES = 1 << 20
"""Values and keys that a body may have: token ids of four contexts, or all the messages that are taken."""

_CHUNK_BYTES = 1 << 20
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]
_BEGINS_VALUE = np.zeros(256, dtype=np.bool_)
_BEGINS_VALUE[list(b",:[{")] = True
"""Each value but the first of all comes behind one of these."""

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def has_too_many_values(body: bytes) -> bool:
    """Whether ``body`` has more than :data:`MAX_VALUES` values, keys counted too.

    What is no JSON is counted as if it were; it is refused where it is parsed.
    """
    n_values, strings = 0, _Strings()
    for start in range(0, len(body), _CHUNK_BYTES):
        chunk = np.frombuffer(body, np.uint8, min(_CHUNK_BYTES, len(body) - start), start)
        n_values += int(np.count_nonzero(_BEGINS_VALUE[chunk] & ~strings.within(chunk)))
        if n_values > MAX_VALUES:
            return True
    return False


class _Strings:
    """Tells what lies inside strings, chunk after chunk."""

    def __init__(self) -> None:
        self._is_inside = False
        self._is_escaping = False  # the last byte escapes the next one

    def within(self, chunk: Bytes) -> Mask:
        """Which bytes of the next ``chunk`` are inside a string, its opening quote included."""
        quotes = (chunk == _QUOTE) & ~self._escaped(chunk)
        inside: Mask = np.logical_xor.accumulate(quotes) ^ self._is_inside
        self._is_inside = bool(inside[-1])
        return inside

    def _escaped(self, chunk: Bytes) -> Mask:
        """Which bytes come behind an odd number of backslashes."""
        is_backslash = chunk == _BACKSLASH
        if not self._is_escaping and not is_backslash.any():
            return np.zeros(len(chunk), dtype=np.bool_)
        position = np.arange(len(chunk), dtype=np.int32)
        # The last byte up to each that is none; before the chunk, one or two bytes back.
        first = -2 if self._is_escaping else -1
        other = np.maximum.accumulate(np.where(is_backslash, first, position))
        is_odd = ((position - other) & 1).astype(np.bool_)
        escaped = np.empty(len(chunk), dtype=np.bool_)
        escaped[0] = self._is_escaping
        escaped[1:] = is_odd[:-1]
        self._is_escaping = bool(is_odd[-1])
        return escaped
