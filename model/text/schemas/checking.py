"""Tells whether what a client sent is a JSON schema, and where it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice

import jsonschema_rs

from model.errors import InputError
from model.text.schemas.reading import NOTES, Schema, extent_of, resolved, steps, subschemas

MAX_SCHEMA_CHARS = 512 * 1024
"""Length of a schema's JSON text; real ones have a hundredth of it."""
MAX_ERRORS = 100
MAX_CHAIN = 64
"""Schemas that judge one value by way of each other."""
MAX_NESTING = 128
METASCHEMAS = tuple(
    jsonschema_rs.validator_for({"$schema": uri, "$ref": uri}, offline=True)
    for uri in (
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-04/schema",
    )
)
"""The drafts that clients write; some leave out which it is."""


def checked_schema(schema: object, where: str) -> Schema:
    """``schema``, if it is one.

    Args:
        where: its place in the request.

    Raises:
        InputError: naming the keyword that is not what JSON Schema says, or why it cannot be read.
    """
    if not isinstance(schema, Mapping):
        raise _invalid(f"{where} must be a JSON schema, an object", where)
    try:
        n_chars = len(json.dumps(schema))
    except RecursionError as error:
        raise _invalid(f"{where} is nested too deeply", where) from error
    if extent_of(schema)[0] > MAX_NESTING:
        raise _invalid(f"{where} is nested too deeply", where)
    if n_chars > MAX_SCHEMA_CHARS:
        raise _invalid(f"{where} has {n_chars} characters, more than {MAX_SCHEMA_CHARS}", where)
    bare = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    _check_keywords(bare, where)
    _check_references(bare, where)
    return schema


def _check_keywords(schema: Schema, where: str) -> None:
    latest, *older = METASCHEMAS
    errors = [error for error in islice(latest.iter_errors(schema), MAX_ERRORS) if not _is_note(error)]
    first = next((error for error in errors if not _is_older(error)), None)
    if first is None and errors:
        found = [
            [e for e in islice(meta.iter_errors(schema), MAX_ERRORS) if not _is_note(e)] for meta in older
        ]
        first = next((told[0] for told in found if told), None) if all(found) else None
    if first is not None:
        place = where + "".join(
            f"[{key}]" if isinstance(key, int) else f".{_shortened(key, 64)}" for key in first.instance_path
        )
        raise _invalid(f"{place}: {_shortened(first.message)}", place)


def _is_note(error: jsonschema_rs.ValidationError) -> bool:
    """Whether an error is in a keyword that only tells something: many clients send those as null."""
    return bool(error.instance_path) and error.instance_path[-1] in NOTES


def _is_older(error: jsonschema_rs.ValidationError) -> bool:
    """Whether what an error complains of was right in an older draft; clients leave out which it is."""
    keyword = error.instance_path[-1] if error.instance_path else None
    return (keyword == "items" and isinstance(error.instance, list)) or (
        keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(error.instance, bool)
    )


def _check_references(schema: Schema, where: str) -> None:
    """Refuse references to nowhere, and values that are defined by nothing but themselves."""
    for path, part in subschemas(schema, where):
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/") and resolved(reference, schema) is None:
            raise _invalid(f"{path}.$ref points to nothing: {_shortened(reference)}", f"{path}.$ref")
    chains = _Chains(schema)
    for path, part in subschemas(schema, where):
        n_steps = chains.length_of(part)
        if n_steps is None:
            raise _invalid(f"{path} is defined by itself alone", path)
        if n_steps > MAX_CHAIN:
            raise _invalid(f"{path} says what it is by way of more than {MAX_CHAIN} schemas", path)


class _Chains:
    """How many schemas judge one value by way of each other. Depth first, with a stack of its own."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._lengths: dict[int, int] = {}

    def length_of(self, schema: Schema) -> int | None:
        """The longest chain from ``schema`` on; None where it leads back to itself."""
        path = [_Link(schema, self._root)]
        on_path = {id(schema)}
        while path:
            link = path[-1]
            step = next(link.steps, None)
            if step is None:
                path.pop()
                on_path.discard(link.number)
                self._lengths[link.number] = link.n_behind + 1
                if path:
                    path[-1].n_behind = max(path[-1].n_behind, link.n_behind + 1)
            elif id(step) in on_path:
                return None
            elif id(step) in self._lengths:
                link.n_behind = max(link.n_behind, self._lengths[id(step)])
            else:
                on_path.add(id(step))
                path.append(_Link(step, self._root))
        return self._lengths[id(schema)]


class _Link:
    """A schema on the way, and what is known of those behind it."""

    def __init__(self, schema: Schema, root: Schema) -> None:
        self.number = id(schema)
        self.steps = iter(steps(schema, root))
        self.n_behind = 0


def _shortened(text: str, n_chars: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= n_chars else f"{text[: n_chars - 3]}..."


def _invalid(message: str, where: str) -> InputError:
    return InputError(message, param=where, code="invalid_schema")
