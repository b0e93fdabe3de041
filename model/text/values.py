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
    open_tags: list[str] = []
    quoted_from = 0  # where the outermost quotation begins
    dropped: ValueEnd | None = None  # where the value ends if the quotation is the next parameter
    closed: re.Match[str] | None = None  # the closing tag with which a quotation has just ended
    for tag in TAG.finditer(text):
        if tag["opener"]:
            line = text[text.rfind("\n", 0, tag.start("opener")) + 1 : tag.start("opener")]
            if line.strip() or not (starts_line or "\n" in text[: tag.start("opener")]):
                continue  # in the middle of a line: spoken of, not written
            if not open_tags:
                quoted_from = quoted_from if dropped or closed else tag.start()
                if dropped is None and tag["key"] and is_next_key(tag["key"].strip()):
                    # The tag before it closes a quotation, or the value, and what seemed to open a
                    # quotation is spoken of. If the call goes on, then the latter.
                    dropped = ValueEnd(tag.start(), is_end=True) if closed is None else _end(closed, None)
            open_tags.append(next(start for start in STARTS if tag["opener"].startswith(start)))
            continue
        behind = _next_chars(text, tag.end())
        if not last and any(start.startswith(behind) for start in STARTS):
            return ValueEnd(quoted_from if open_tags or dropped or closed else tag.start())
        owned = OPENER_OF[tag["closer"]] in open_tags
        if owned:
            while open_tags.pop() != OPENER_OF[tag["closer"]]:
                pass
            closes_call = behind.startswith(GOES_ON) and not _owns(open_tags, behind)
            if tag["closer"] == END_PARAMETER and (closes_call or (last and not behind)):
                return _end(tag, dropped)
            closed = tag if not open_tags and tag["closer"] == END_PARAMETER else None
            if not open_tags and not behind.startswith(PARAMETER):
                dropped = closed = None
        elif behind.startswith(FOLLOWERS[tag["closer"]]) or (
            last and not behind and tag["closer"] != END_CALL
        ):
            return _end(tag, dropped)
    if open_tags or dropped or closed:
        return ValueEnd(len(text) if last else quoted_from, waits_for_tag=not last)
    return ValueEnd(len(text) if last else len(text) - _n_begun_tag(text))


def _next_chars(text: str, start: int) -> str:
    """What follows the white space at ``start``, as far as a tag may reach."""
    space = SPACE.match(text, start)
    at = space.end() if space else start
    return text[at : at + MAX_TAG_CHARS]


def _end(tag: re.Match[str], dropped: ValueEnd | None) -> ValueEnd:
    if dropped is not None:
        return dropped
    is_own = tag["closer"] == END_PARAMETER
    return ValueEnd(tag.start(), is_end=True, n_closer=len(tag[0]) if is_own else len(tag["break"]))


def _owns(open_tags: list[str], behind: str) -> bool:
    """Whether the closing tag that ``behind`` begins with belongs to one of ``open_tags``."""
    closer = next(tag for tag in GOES_ON if behind.startswith(tag))
    return OPENER_OF[closer] in open_tags


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
