"""Finds where a parameter's value ends in text that may quote calls itself.

A value is raw text, so nothing escapes the tags in it. The rules, in the order in which they decide:

* An opening tag at the beginning of a line owns the next closing tag of its kind: what it opens is a
  quotation inside the value, a whole call too.
* Unless that quotation is the next parameter: its key is one of the tool's that was not given yet, and the
  call goes on behind it. Then the model dropped a ``</parameter>``, and the value ends in front of the tag.
* Any other ``</parameter>`` ends the value if another tag of the form follows, so a value may speak of the
  tag. ``</function>`` ends it if ``</tool_call>`` or nothing follows.

While a quotation is open nothing of it is certain. It waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

CALL, END_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
KEY = re.compile(rf"{PARAMETER}([^<>\n]+)>")
TAG = re.compile(
    rf"(?P<break>\n?)(?:(?P<closer>{END_PARAMETER}|{END_FUNCTION}|{END_CALL})"
    rf"|(?P<opener>{CALL}|{FUNCTION}[^<>\n]+>|{PARAMETER}(?P<key>[^<>\n]+)>))"
)
STARTS = (CALL, END_CALL, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)
OPENER_OF = {END_CALL: CALL, END_FUNCTION: FUNCTION, END_PARAMETER: PARAMETER}
FOLLOWERS = {END_PARAMETER: STARTS, END_FUNCTION: (END_CALL,), END_CALL: ()}
"""What must stand behind a closing tag that ends a value."""
SPACE = re.compile(r"\s*")
MAX_TAG_CHARS = max(map(len, STARTS))
GOES_ON = (END_FUNCTION, END_CALL)


@dataclass(frozen=True, slots=True)
class ValueEnd:
    """What is known of a value.

    Attributes:
        n_value: characters that certainly belong to it; all of them at its end.
        is_end: it ends there.
        n_closer: characters of the closing tag behind it; 0 where that is missing.
        waits_for_tag: more is known only when another whole tag has come.
    """

    n_value: int
    is_end: bool = False
    n_closer: int = 0
    waits_for_tag: bool = False


def find_end(text: str, is_next_key: Callable[[str], bool], *, starts_line: bool, last: bool) -> ValueEnd:
    """Read a value from its beginning, or from where it was certain before.

    Args:
        is_next_key: whether a key is one of the tool's and still to be given.
        starts_line: nothing but white space stands in front of ``text`` in its line.
        last: nothing follows ``text``.
    """
    scan = _Scan(text, is_next_key, starts_line, last)
    for tag in TAG.finditer(text):
        if tag["opener"]:
            scan.open(tag)
        elif (found := scan.close(tag)) is not None:
            return found
    if scan.is_quoting:
        return ValueEnd(len(text) if last else scan.quoted_from, waits_for_tag=not last)
    return ValueEnd(len(text) if last else len(text) - _n_begun_tag(text))


class _Scan:
    """One reading of a value.

    Attributes:
        quoted_from: where the outermost quotation begins.
    """

    def __init__(self, text: str, is_next_key: Callable[[str], bool], starts_line: bool, last: bool) -> None:
        self._text, self._is_next_key = text, is_next_key
        self._starts_line, self._last = starts_line, last
        self._open: list[tuple[str, int]] = []  # opening tags that wait for theirs, and where they stand
        self._dropped: ValueEnd | None = None  # where the value ends if the quotation is the next parameter
        self._closed: re.Match[str] | None = None  # with which a quotation has just ended
        self.quoted_from = 0

    @property
    def is_quoting(self) -> bool:
        """It depends on what follows whether what was read last is a quotation."""
        return bool(self._open or self._dropped or self._closed)

    def open(self, tag: re.Match[str]) -> None:
        """Go on by an opening tag; in the middle of a line it is spoken of, not written."""
        at = tag.start("opener")
        if not self._begins_line(at):
            return
        if not self._open:
            self.quoted_from = self.quoted_from if self.is_quoting else tag.start()
            if self._dropped is None and tag["key"] and self._is_next_key(tag["key"].strip()):
                # The tag before it closes a quotation, or the value, and what seemed to open a quotation
                # is spoken of. If the call goes on, then the latter.
                closed = self._closed
                self._dropped = ValueEnd(tag.start(), is_end=True) if closed is None else self._end(closed)
        self._open.append((next(start for start in STARTS if tag["opener"].startswith(start)), at))

    def close(self, tag: re.Match[str]) -> ValueEnd | None:
        """Go on by a closing tag; what is then known, if the value may end here."""
        closer, at = tag["closer"], tag.start("closer")
        opened_at = next((at for opener, at in reversed(self._open) if opener == OPENER_OF[closer]), None)
        is_own_line = self._begins_line(at)
        if opened_at is not None and not is_own_line and "\n" in self._text[opened_at:at]:
            return None  # spoken of in a quotation that has its own further on
        behind = _next_chars(self._text, tag.end())
        if not self._last and any(start.startswith(behind) for start in STARTS):
            return ValueEnd(self.quoted_from if self.is_quoting else tag.start())
        is_over = self._last and not behind
        if opened_at is None:
            may_end = behind.startswith(FOLLOWERS[closer]) or (is_over and closer != END_CALL)
            return self._end(tag) if may_end else None
        while self._open.pop()[1] != opened_at:
            pass
        if closer == END_PARAMETER and (is_over or self._closes_call(behind)):
            return self._end(tag)
        if not self._open:
            goes_on = behind.startswith(PARAMETER)
            self._closed = tag if goes_on and closer == END_PARAMETER else None
            self._dropped = self._dropped if goes_on else None
        return None

    def _begins_line(self, at: int) -> bool:
        """Whether nothing but white space stands in front of ``at`` in its line."""
        line_start = self._text.rfind("\n", 0, at) + 1
        return (line_start > 0 or self._starts_line) and not self._text[line_start:at].strip()

    def _closes_call(self, behind: str) -> bool:
        """Whether ``behind`` begins with a closing tag that belongs to no quotation."""
        closer = next((tag for tag in GOES_ON if behind.startswith(tag)), None)
        return closer is not None and all(opener != OPENER_OF[closer] for opener, _ in self._open)

    def _end(self, tag: re.Match[str]) -> ValueEnd:
        if self._dropped is not None:
            return self._dropped
        is_own = tag["closer"] == END_PARAMETER
        return ValueEnd(tag.start(), is_end=True, n_closer=len(tag[0]) if is_own else len(tag["break"]))


def _next_chars(text: str, start: int) -> str:
    """What follows the white space at ``start``, as far as a tag may reach."""
    space = SPACE.match(text, start)
    at = space.end() if space else start
    return text[at : at + MAX_TAG_CHARS]


def _n_begun_tag(text: str) -> int:
    """Length of the end of ``text`` that may be the beginning of a tag, its line feed included."""
    at = text.rfind("<")
    if at < 0 or not _may_be_tag(text[at:]):
        return int(text.endswith("\n"))
    return len(text) - at + int(text[:at].endswith("\n"))


def _may_be_tag(text: str) -> bool:
    if any(start.startswith(text) for start in STARTS):
        return True
    return text.startswith((FUNCTION, PARAMETER)) and not set(text[1:]) & set("<>\n")


def may_be_key(text: str) -> bool:
    """Whether ``text`` begins a parameter's tag, whole or not yet whole."""
    return text.startswith(PARAMETER) and not set(text[1:].partition(">")[0]) & set("<\n")
