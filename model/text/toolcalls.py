"""Reads the family's XML calls out of a reply's content while it is being written.

::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

What is delivered as a call names one of the request's tools; everything else that looks like one is
text, released as it was written. A call begins with ``<function=NAME>`` and a whole parameter tag or a
closing tag right behind it; models of the family leave the outer tags out now and then. A call is
complete at ``</function>``, at ``</tool_call>``, or where the next call begins; parameters behind
``</function>`` still belong to it.

Where a value ends, see ``model/text/values.py``. Of a call that breaks off, what was written is
delivered and its JSON stays unfinished: nothing is closed on the model's behalf. So it is with a call that
cannot be understood: a parameter given twice with different values, a broken parameter tag. What follows is
content. Text between the tags of a call goes to the content; closing tags behind a call are layout.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from model.text.arguments import ParameterType, parameter_type, quoted
from model.text.deltas import Piece, ToolCallArguments, ToolCallStart, n_begun, n_trailing_space
from model.text.schemas.reading import members
from model.text.values import (
    CALL,
    END_CALL,
    END_FUNCTION,
    END_PARAMETER,
    FUNCTION,
    KEY,
    PARAMETER,
    find_end,
    may_be_key,
)

HEAD = re.compile(
    rf"(?:{CALL}\s*)?{FUNCTION}([^<>\n]+)>\s*(?={PARAMETER}[^<>\n]+>|{END_FUNCTION}|{END_CALL})"
)

N_TELLING = 8
"""Characters, white space before them aside, after which nothing more is learned of a value's type."""

CallDelta = ToolCallStart | ToolCallArguments
Read = Piece | CallDelta


def new_call_id() -> str:
    """An id that no other call of any conversation has."""
    return f"call_{uuid.uuid4().hex[:24]}"


def schemas_by_name(tools: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Each tool's parameter schema (None where it has none)."""
    functions = [tool.get("function", tool) for tool in tools]
    return {str(function["name"]): function.get("parameters") for function in functions}


class ToolCallReader:
    """Content in, content and call deltas out.

    Attributes:
        n_complete: calls that were delivered whole.
        in_call: the text so far ends inside a call that has begun to be delivered.
    """

    def __init__(self, schemas: Mapping[str, object], new_id: Callable[[], str] = new_call_id) -> None:
        self._schemas = schemas
        self._new_id = new_id
        self._state: Literal["text", "head", "body", "value", "closed", "after"] = "text"
        self._held = Piece("", 0)
        self._space: Piece | None = None
        self._keeps_space = False  # it stood before a call: space behind the call does not add to it
        self._after_call = False
        self._has_text = False
        self._name = ""
        self._known: frozenset[str] = frozenset()
        self._key = ""
        self._type = ParameterType()
        self._written: dict[str, str] = {}  # the call's parameters as JSON, by key
        self._value: list[str] = []
        self._begun = ""  # what tells whether the value is a string
        self._is_streaming = False
        self._is_repeated = False
        self._waits_for_tag = False
        self._at_value_start = self._starts_line = False
        self._in_scraps = False
        self._is_broken = False
        self._n_started = 0
        self.n_complete = 0

    @property
    def in_call(self) -> bool:
        return self._state in ("body", "value", "closed") or self._is_broken

    def push(self, piece: Piece) -> Iterator[Read]:
        """Read on; what may still become part of a tag waits, and so does space in front of a call."""
        self._held = Piece(self._held.text + piece.text, self._held.start if self._held.text else piece.start)
        if self._waits_for_tag and ">" not in piece.text:
            return  # inside a quotation, which nothing but a whole tag can end
        yield from self._run(last=False)

    def finish(self) -> Iterator[Read]:
        """Release what was still waiting, as text or as the unfinished end of a call's arguments."""
        yield from self._run(last=True)

    def _run(self, *, last: bool) -> Iterator[Read]:
        steps = {
            "text": self._read_text,
            "head": self._read_head,
            "body": self._read_body,
            "value": self._read_value,
            "closed": self._read_closed,
            "after": self._read_after,
        }
        while True:
            before = self._state, len(self._held.text)
            yield from steps[self._state](last)
            if before == (self._state, len(self._held.text)):
                return

    def _take(self, n_chars: int) -> Piece:
        taken, self._held = self._held.cut(n_chars)
        return taken

    def _read_text(self, last: bool) -> Iterator[Read]:
        text = self._held.text
        places = [at for opener in (CALL, FUNCTION) if (at := text.find(opener)) >= 0]
        if places:
            yield from self._text(min(places))
            self._state = "head"
        elif last:
            yield from self._text(len(text))
            # Space in front of a delivered call is layout; with no call behind it, it was written.
            if self._space is not None and not self._after_call:
                yield self._space
            self._space = None
        else:
            yield from self._text(len(text) - n_begun(text, [CALL, FUNCTION]))

    def _text(self, n_chars: int) -> Iterator[Piece]:
        """Pass ``n_chars`` held characters on as content, keeping space at their end back."""
        piece = self._take(n_chars)
        space, piece = piece.cut(len(piece.text) - len(piece.text.lstrip()))
        self._keep_space(space)
        text, space = piece.cut(len(piece.text) - n_trailing_space(piece.text))
        if text.text:
            if self._space is not None and (self._has_text or not self._after_call):
                yield self._space
            yield text
            self._space, self._keeps_space = None, False
            self._after_call, self._has_text = False, True
        self._keep_space(space)

    def _keep_space(self, space: Piece) -> None:
        if space.text and self._space is None:
            self._space = space
        elif space.text and self._space is not None and not self._keeps_space:
            self._space = Piece(self._space.text + space.text, self._space.start)

    def _read_head(self, last: bool) -> Iterator[Read]:
        text = self._held.text
        head = HEAD.match(text)
        name = head[1].strip() if head else ""
        if head and name in self._schemas:
            self._take(head.end())
            yield from self._start(name)
        elif head or last or not _may_be_head(text):
            # Not a call of ours: the tag is text, and what follows it is read anew.
            yield from self._text(len(CALL if text.startswith(CALL) else FUNCTION))
            self._state = "text"

    def _start(self, name: str) -> Iterator[Read]:
        self._name, self._state, self._written = name, "body", {}
        self._known = frozenset(members(self._schemas[name]).properties)
        self._in_scraps = self._is_broken = False
        yield ToolCallStart(self._n_started, self._new_id(), name)
        self._n_started += 1
        self._after_call = True
        self._keeps_space = self._space is not None
        # At once, so that a call cut off here is not taken for one without arguments.
        yield self._arguments("{")

    def _arguments(self, fragment: str) -> ToolCallArguments:
        return ToolCallArguments(self._n_started - 1, fragment)

    def _complete(self) -> Iterator[Read]:
        self.n_complete += 1
        yield self._arguments("}")

    def _break(self) -> None:
        """The call cannot be understood: its JSON stays unfinished, what follows is text."""
        self._is_broken, self._state = True, "text"

    def _read_body(self, last: bool) -> Iterator[Read]:
        text = self._held.text.lstrip()
        n_space = len(self._held.text) - len(text)
        key, head = KEY.match(text), HEAD.match(text)
        if key:
            self._take(n_space + key.end())
            yield from self._open_value(key[1].strip())
        elif text.startswith(END_FUNCTION):
            self._take(n_space + len(END_FUNCTION))
            self._state = "closed"
        elif text.startswith(END_CALL) or (head and head[1].strip() in self._schemas):
            self._take(n_space)
            self._state = "after"
            yield from self._complete()
        elif text.startswith(END_PARAMETER):
            self._take(n_space + len(END_PARAMETER))
        elif text.startswith(PARAMETER) and (last or not may_be_key(text)):
            self._break()
        elif text and (last or not _may_be_tag(text)):
            # Neither a tag nor the beginning of one. Space counts only between such scraps of text.
            scrap = text[: text.find("<", 1)] if "<" in text[1:] else text
            space = self._take(n_space)
            if space.text and self._in_scraps:
                yield space
            self._in_scraps = True
            yield self._take(1 if scrap.startswith("<") else len(scrap.rstrip()))

    def _open_value(self, key: str) -> Iterator[Read]:
        self._key, self._is_repeated = key, key in self._written
        self._in_scraps = self._is_streaming = False
        self._type = parameter_type(self._schemas[self._name], key)
        self._state, self._value, self._at_value_start = "value", [], True
        self._starts_line = True
        self._begun = ""
        if not self._is_repeated:
            separator = ", " if self._written else ""
            yield self._arguments(f"{separator}{quoted(key)}: ")
            yield from self._grow_value("")

    def _read_value(self, last: bool) -> Iterator[Read]:
        if self._at_value_start and self._held.text:
            self._take(1 if self._held.text.startswith("\n") else 0)
            self._at_value_start = False
        found = find_end(self._held.text, self._is_next_key, starts_line=self._starts_line, last=last)
        self._waits_for_tag = found.waits_for_tag
        yield from self._grow_value(self._take(found.n_value).text)
        if found.is_end:
            self._take(found.n_closer)
            yield from self._close_value()
        elif last and not self._is_streaming and not self._is_repeated and self._value:
            yield self._arguments("".join(self._value))
            self._value = []

    def _is_next_key(self, key: str) -> bool:
        return key in self._known and key != self._key and key not in self._written

    def _grow_value(self, text: str) -> Iterator[Read]:
        if text:
            self._value.append(text)
            self._starts_line = ("\n" in text or self._starts_line) and not text.rpartition("\n")[2].strip()
        if self._is_repeated:
            return
        if self._is_streaming:
            if text:
                yield self._arguments(quoted(text)[1:-1])
        elif len(self._begun) < N_TELLING:
            self._begun += text.lstrip() if not self._begun else text
            if self._type.is_string(self._begun):
                self._is_streaming = True
                yield self._arguments(quoted("".join(self._value))[:-1])

    def _close_value(self) -> Iterator[Read]:
        raw = "".join(self._value)
        written = quoted(raw) if self._is_streaming else self._type.to_json(raw)
        self._state = "body"
        if not self._is_repeated:
            self._written[self._key] = written
            yield self._arguments('"' if self._is_streaming else written)
        elif self._written[self._key] != self._type.to_json(raw):
            self._break()

    def _read_closed(self, last: bool) -> Iterator[Read]:
        """Behind ``</function>``: a parameter that follows still belongs to the call."""
        text = self._held.text.lstrip()
        if KEY.match(text) or (text.startswith(END_FUNCTION) and not last):
            self._state = "body"
        elif last or not (PARAMETER.startswith(text) or may_be_key(text)):
            self._state = "after"
            yield from self._complete()

    def _read_after(self, last: bool) -> Iterator[Read]:
        """Behind a call: closing tags without an opening one are layout."""
        text = self._held.text.lstrip()
        n_space = len(self._held.text) - len(text)
        closer = next((tag for tag in (END_CALL, END_FUNCTION, END_PARAMETER) if text.startswith(tag)), None)
        if closer is not None:
            self._take(n_space + len(closer))
        elif last or not any(tag.startswith(text) for tag in (END_CALL, END_FUNCTION, END_PARAMETER)):
            self._state = "text"
        yield from ()


def _may_be_head(text: str) -> bool:
    """Whether ``text``, which begins with an opener, may still become the head of a call."""
    head = text.removeprefix(CALL).lstrip()
    if len(head) < len(FUNCTION):
        return FUNCTION.startswith(head)
    name, closed, behind = head.removeprefix(FUNCTION).partition(">")
    if not head.startswith(FUNCTION) or set(name) & set("<\n") or (closed and not name):
        return False
    behind = behind.lstrip()
    tags = (PARAMETER, END_FUNCTION, END_CALL)
    return not closed or any(tag.startswith(behind) for tag in tags) or may_be_key(behind)


def _may_be_tag(text: str) -> bool:
    """Whether ``text`` may still become a tag of a call's body, or the head of the next call."""
    if text.startswith((CALL, FUNCTION)):
        return _may_be_head(text)
    tags = (PARAMETER, END_PARAMETER, END_FUNCTION, END_CALL, CALL, FUNCTION)
    return may_be_key(text) or any(tag.startswith(text) for tag in tags)
