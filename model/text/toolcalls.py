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
text, released as it was written. A call begins with ``<function=NAME>`` and a parameter or the closing
tag right behind it; models of the family leave the outer tags out now and then. A call is complete at
``</function>`` (or ``</tool_call>``). A value ends at a ``</parameter>`` that is followed by another tag of
the form, so that a value may speak of the tag. Of a call that breaks off, what was written is
delivered and its JSON stays unfinished: nothing is closed on the model's behalf. Text between the
tags of a call goes to the content.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from model.text.arguments import parameter_kinds, quoted, to_json
from model.text.deltas import ToolCallArguments, ToolCallStart
from model.text.stops import Piece, n_begun, n_trailing_space

CALL, END_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
HEAD = re.compile(rf"(?:{CALL}\s*)?{FUNCTION}([^<>\n]+)>\s*(?={PARAMETER}|{END_FUNCTION})")
KEY = re.compile(rf"{PARAMETER}([^<>\n]+)>")
CLOSER = re.compile(rf"\n?({END_PARAMETER}|{END_FUNCTION})")
CLOSERS = (f"\n{END_PARAMETER}", END_PARAMETER, f"\n{END_FUNCTION}", END_FUNCTION)
FOLLOWERS = {END_PARAMETER: (PARAMETER, END_PARAMETER, END_FUNCTION, END_CALL), END_FUNCTION: (END_CALL,)}
"""What must stand behind a closing tag that ends a value; the tag twice is a slip that models make."""

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
        self._state: Literal["text", "head", "body", "value", "after"] = "text"
        self._held = Piece("", 0)
        self._space: Piece | None = None
        self._keeps_space = False  # it stood before a call: space behind the call does not add to it
        self._after_call = False
        self._has_text = False
        self._name = ""
        self._kinds: frozenset[str] = frozenset()
        self._n_parameters = 0
        self._value: list[str] = []
        self._at_value_start = False
        self._in_scraps = False
        self._n_started = 0
        self.n_complete = 0

    @property
    def in_call(self) -> bool:
        return self._state in ("body", "value")

    def push(self, piece: Piece) -> Iterator[Read]:
        """Read on; what may still become part of a tag waits, and so does space in front of a call."""
        self._held = Piece(self._held.text + piece.text, self._held.start if self._held.text else piece.start)
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
        self._name, self._state, self._n_parameters = name, "body", 0
        self._in_scraps = False
        yield ToolCallStart(self._n_started, self._new_id(), name)
        self._n_started += 1
        self._after_call = True
        self._keeps_space = self._space is not None
        # At once, so that a call cut off here is not taken for one without arguments.
        yield self._arguments("{")

    def _arguments(self, fragment: str) -> ToolCallArguments:
        return ToolCallArguments(self._n_started - 1, fragment)

    def _read_body(self, last: bool) -> Iterator[Read]:
        text = self._held.text.lstrip()
        n_space = len(self._held.text) - len(text)
        key = KEY.match(text)
        if key:
            self._take(n_space + key.end())
            yield from self._open_value(key[1].strip())
        elif text.startswith((END_FUNCTION, END_CALL)):
            self._take(n_space + (len(END_FUNCTION) if text.startswith(END_FUNCTION) else 0))
            self.n_complete += 1
            self._state = "after"
            yield self._arguments("}")
        elif text.startswith(END_PARAMETER):
            self._take(n_space + len(END_PARAMETER))
        elif text and (last or not _may_be_tag(text)):
            # Neither a tag nor the beginning of one. Space counts only between such scraps of text.
            scrap = text[: text.find("<", 1)] if "<" in text[1:] else text
            space = self._take(n_space)
            if space.text and self._in_scraps:
                yield space
            self._in_scraps = True
            yield self._take(1 if scrap.startswith("<") else len(scrap.rstrip()))

    def _open_value(self, key: str) -> Iterator[Read]:
        separator = ", " if self._n_parameters else ""
        self._n_parameters += 1
        self._in_scraps = False
        self._kinds = parameter_kinds(self._schemas[self._name], key)
        self._state, self._value, self._at_value_start = "value", [], True
        yield self._arguments(f"{separator}{quoted(key)}: " + ('"' if self._streams else ""))

    @property
    def _streams(self) -> bool:
        """The value can only be a string, so it need not be seen whole before its type is known."""
        return self._kinds == {"string"}

    def _read_value(self, last: bool) -> Iterator[Read]:
        if self._at_value_start and self._held.text:
            self._take(1 if self._held.text.startswith("\n") else 0)
            self._at_value_start = False
        n_chars, closer = self._find_closer(last)
        yield from self._grow_value(self._take(n_chars).text)
        if closer is not None:
            # A missing </parameter> before </function> closes the value too; the body reads that tag.
            self._take(len(closer) if closer.endswith(END_PARAMETER) else closer.startswith("\n"))
            self._state = "body"
            yield self._arguments('"' if self._streams else to_json("".join(self._value), self._kinds))
        elif last and not self._streams and self._value:
            yield self._arguments("".join(self._value))
            self._value = []

    def _grow_value(self, text: str) -> Iterator[Read]:
        if text and self._streams:
            yield self._arguments(quoted(text)[1:-1])
        elif text:
            self._value.append(text)

    def _find_closer(self, last: bool) -> tuple[int, str | None]:
        """How much of the held text is certainly value, and the tag right behind it that ends the value."""
        text = self._held.text
        for closer in CLOSER.finditer(text):
            behind = text[closer.end() :].lstrip()
            followers = FOLLOWERS[closer[1]]
            if behind.startswith(followers) or (last and not behind):
                return closer.start(), closer[0]
            if not last and any(follower.startswith(behind) for follower in followers):
                return closer.start(), None
        return len(text) if last else len(text) - n_begun(text, CLOSERS), None

    def _read_after(self, last: bool) -> Iterator[Read]:
        text = self._held.text.lstrip()
        if text.startswith(END_CALL):
            self._take(self._held.text.index(END_CALL) + len(END_CALL))
            self._state = "text"
        elif last or not END_CALL.startswith(text):
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
    return not closed or any(tag.startswith(behind) for tag in (PARAMETER, END_FUNCTION))


def _may_be_tag(text: str) -> bool:
    """Whether ``text`` may still become a tag of a call's body."""
    if text.startswith(PARAMETER):
        return not set(text.removeprefix(PARAMETER)) & set("<>\n")
    return any(tag.startswith(text) for tag in (PARAMETER, END_PARAMETER, END_FUNCTION, END_CALL))
