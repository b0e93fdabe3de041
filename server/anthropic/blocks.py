"""Puts a reply's deltas into content blocks, one after the other.

A thinking block has a ``signature``, which clients send back unread. Where a client does not want to see the
thought, the signature holds it, so that the next prompt can be the one that the model has read; elsewhere it
only names the thought. It proves nothing: whoever could forge a signature could as well send a thinking block
with any text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import Any, Literal

from pydantic_core import from_json

from model.text.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallStart
from server.anthropic.schema.replies import (
    BlockDelta,
    BlockEvent,
    BlockGrowth,
    BlockStart,
    BlockStop,
    ContentBody,
    InputDelta,
    SignatureDelta,
    TextBody,
    TextDelta,
    ThinkingBody,
    ThinkingDelta,
    ToolUseBody,
)

Kind = Literal["thinking", "text", "tool_use"]
CARRIER = "crossturn-thought-1."
NAME = "crossturn-named-1."
MAX_BYTES = 4 * 1024 * 1024
"""More than any context has room for: a few kilobytes of zeros unpack to gigabytes."""


class BlockWriter:
    """The blocks of one reply. They never interleave: text that a model writes between the tags of a
    call is held back until the call is complete.

    Args:
        shows_thoughts: whether thoughts are sent; otherwise only their signatures hold them.

    Attributes:
        blocks: the complete blocks.
    """

    def __init__(self, *, shows_thoughts: bool = True) -> None:
        self._shows_thoughts = shows_thoughts
        self._kind: Kind | None = None
        self._call: ToolCallStart | None = None
        self._pieces: list[str] = []
        self._waiting: list[str] = []
        self.blocks: list[ContentBody] = []

    def push(self, delta: Delta) -> Iterator[BlockEvent]:
        """The events that ``delta`` makes."""
        match delta:
            case ReasoningDelta():
                yield from self._open("thinking")
                self._pieces.append(delta.text)
                if self._shows_thoughts:
                    yield self._growth(ThinkingDelta(type="thinking_delta", thinking=delta.text))
            case ContentDelta() if self._kind == "tool_use" and not self._is_json:
                self._waiting.append(delta.text)
            case ContentDelta():
                yield from self._open("text")
                self._pieces.append(delta.text)
                yield self._growth(TextDelta(type="text_delta", text=delta.text))
            case ToolCallStart():
                yield from self.finish()
                self._call = delta
                yield from self._open("tool_use")
            case ToolCallArguments():
                self._pieces.append(delta.json_fragment)
                yield self._growth(InputDelta(type="input_json_delta", partial_json=delta.json_fragment))

    def finish(self) -> Iterator[BlockEvent]:
        """End the open block, and emit the text that was held back."""
        yield from self._close()
        if self._waiting:
            text, self._waiting = "".join(self._waiting), []
            yield from self.push(ContentDelta(text))
            yield from self._close()

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    @property
    def _is_json(self) -> bool:
        """Whether the arguments of the open call are complete."""
        try:
            json.loads(self._text)
        except ValueError:
            return False
        return True

    def _open(self, kind: Kind) -> Iterator[BlockEvent]:
        if self._kind == kind:
            return
        yield from self.finish()
        self._kind = kind
        yield BlockStart(type="content_block_start", index=len(self.blocks), content_block=self._body(""))

    def _close(self) -> Iterator[BlockEvent]:
        if self._kind is None:
            return
        if self._kind == "thinking":
            yield self._growth(SignatureDelta(type="signature_delta", signature=self._signature(self._text)))
        body = self._body(self._text)
        yield BlockStop(type="content_block_stop", index=len(self.blocks))
        self.blocks.append(body)
        self._kind, self._pieces = None, []

    def _growth(self, delta: BlockGrowth) -> BlockDelta:
        return BlockDelta(type="content_block_delta", index=len(self.blocks), delta=delta)

    def _body(self, text: str) -> ContentBody:
        """The open block with ``text`` as its content; it starts with none."""
        if self._kind == "thinking":
            signature = self._signature(text) if text else ""
            return ThinkingBody(
                type="thinking", thinking=text if self._shows_thoughts else "", signature=signature
            )
        if self._kind == "tool_use":
            assert self._call is not None
            return ToolUseBody(
                type="tool_use", id=_tool_use_id(self._call.id), name=self._call.name, input=_input(text)
            )
        return TextBody(type="text", text=text)

    def _signature(self, thought: str) -> str:
        return naming(thought) if self._shows_thoughts else carrying(thought)


def _tool_use_id(call_id: str) -> str:
    """``call_id`` with Anthropic's prefix."""
    return f"toolu_{call_id.removeprefix('call_')}"


def _input(arguments: str) -> dict[str, Any]:
    """The object in ``arguments``; of an incomplete call the part that is there, as Anthropic's own clients
    read a stream."""
    value = from_json(arguments, allow_partial="trailing-strings") if arguments else {}
    return value if isinstance(value, dict) else {}


def naming(thought: str) -> str:
    """A signature for a thought that is sent beside it."""
    return NAME + hashlib.blake2b(thought.encode(), digest_size=16).hexdigest()


def carrying(thought: str) -> str:
    """A signature that holds the thought."""
    return CARRIER + base64.b64encode(zlib.compress(thought.encode())).decode()


def thought_in(signature: str | None) -> str | None:
    """The thought in ``signature``; None if there is none, as in another server's."""
    if signature is None or not signature.startswith(CARRIER):
        return None
    try:
        packed = base64.b64decode(signature.removeprefix(CARRIER), validate=True)
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, MAX_BYTES)
        return text.decode() if unpacker.eof else None
    except (ValueError, zlib.error):
        return None
