"""What the model is told behind the last message: the schema that its answer will be held to.

A schema that is enforced and not shown makes a model write what it can, not what is wanted: it learns of a
field only when it has to fill it. Behind the last message the note leaves the conversation in front of it as
it is, so nothing is read again for it but the reply before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.turn.turn import ResponseFormat

TELLING = frozenset(
    {"properties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}
)
"""Keywords without one of which a schema says no more than a type."""


MAX_SCHEMA_CHARS = 32_768
"""Longer schemas are not shown: they would be most of the prompt."""


def schema_note(wanted: ResponseFormat | None, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The note for an answer of the form ``wanted``; None where there is nothing to tell, or where
    ``messages`` tell it already."""
    if wanted is None or not TELLING & set(wanted.schema):
        return None
    schema = json.dumps(wanted.schema, ensure_ascii=False)
    told = _bare(schema)
    if len(told) > MAX_SCHEMA_CHARS or any(told in _bare(text) for text in _texts(messages)):
        return None
    purpose = f" ({wanted.description})" if wanted.description else ""
    return f"Answer with JSON{purpose} that fits this JSON schema, and with nothing else:\n{schema}"


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, Sequence):
            yield "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _bare(text: str) -> str:
    """``text`` without white space, however JSON was indented in it."""
    return "".join(text.split())
