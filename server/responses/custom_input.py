"""Reads a custom tool's text out of the arguments that it is wrapped in, while they are being written."""

from __future__ import annotations

import json
import re

from model.text.grammar.calls import INPUT

_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = r"\\u[dD][89abAB][0-9a-fA-F]{2}(?=\\?$|\\u[dD]?$|\\u[dD][c-fC-F][0-9a-fA-F]?$)"
"""The first half of a pair of escapes that make one character, where its second half may still come."""
_ESCAPE = re.compile(rf"{_PAIR}|(?!{_HALF})\\(?:u[0-9a-fA-F]{{4}}|[^u])")


class CustomInput:
    """From fragments of ``{"input": "..."}`` to what the string says so far.

    Attributes:
        text: all that was read.
    """

    def __init__(self) -> None:
        self.text = ""
        self._whole = ""
        self._rest = ""
        self._state = "head"

    def push(self, fragment: str) -> str:
        """More of the arguments; the text that it adds."""
        self._whole += fragment
        self._rest += fragment
        if self._state == "head":
            self._read_head()
        if self._state != "string":
            return ""
        return self._add(self._read_string())

    def finish(self) -> str:
        """The end of the arguments; what they add beyond what was read: arguments of another form as JSON."""
        if self._state != "head":
            return ""
        try:
            arguments = json.loads(self._whole)
        except ValueError:
            return self._add(self._whole if self._whole.strip() != "{" else "")
        value = arguments.get(INPUT, "") if isinstance(arguments, dict) else arguments
        return self._add(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    def _read_head(self) -> None:
        head = _HEAD.match(self._rest)
        if head is not None:
            self._rest = self._rest[head.end() :]
            self._state = "string"

    def _read_string(self) -> str:
        """Take whole characters off the rest, up to the string's end or an escape that is not whole yet."""
        n = 0
        while n < len(self._rest) and self._rest[n] != '"':
            if self._rest[n] != "\\":
                n += 1
                continue
            escape = _ESCAPE.match(self._rest, n)
            if escape is None:
                break
            n = escape.end()
        taken, self._rest = self._rest[:n], self._rest[n:]
        if self._rest.startswith('"'):
            self._state = "done"
        text: str = json.loads(f'"{taken}"', strict=False)
        return text

    def _add(self, text: str) -> str:
        self.text += text
        return text
