"""Reads JSON schemas that clients send: whether they are schemas, what they allow, what fits them.

A schema comes from outside and may be anything. Every walk here is linear in its size, references
included, and nothing is ever fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jsonschema_rs

from model.errors import InputError

Schema = Mapping[str, Any]
ALL_KINDS = frozenset({"string", "null", "boolean", "integer", "number", "object", "array"})
MAX_SCHEMA_CHARS = 512 * 1024
"""Length of a schema's JSON text; real ones have a hundredth of it."""
MAX_STEPS = 500_000
"""Of a validation: some tens of milliseconds."""
MAX_DEPTH = 100
MAX_ERRORS = 100
IN_PLACE = ("anyOf", "oneOf", "allOf")
"""Keywords whose schemas judge the same value."""
BOUND_PATTERNS = jsonschema_rs.RegexOptions(size_limit=2**20, dfa_size_limit=2**20)
"""Linear in the text, unlike a backtracking engine."""
VALIDATORS = {
    "draft-04": jsonschema_rs.Draft4Validator,
    "draft-06": jsonschema_rs.Draft6Validator,
    "draft-07": jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
}
"""By a word of ``$schema``; the latest draft otherwise."""
METASCHEMAS = tuple(
    jsonschema_rs.validator_for({"$schema": uri, "$ref": uri}, offline=True)
    for uri in (
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-04/schema",
    )
)
"""The drafts that clients write; some leave out which it is."""


@dataclass(frozen=True, slots=True)
class Members:
    """What a schema says of an object's members.

    Attributes:
        properties: by name.
        required: names, in the order of the schema.
        others: what other members must be; None where none may be there or nothing is said of them.
    """

    properties: Mapping[str, object]
    required: tuple[str, ...]
    others: object | None


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
    if n_chars > MAX_SCHEMA_CHARS:
        raise _invalid(f"{where} has {n_chars} characters, more than {MAX_SCHEMA_CHARS}", where)
    bare = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    _check_keywords(bare, where)
    _check_references(bare, where)
    return schema


def members(schema: object) -> Members:
    """The members that ``schema`` knows, those of its references and of ``allOf`` included."""
    properties: dict[str, object] = {}
    required: dict[str, None] = {}
    others: list[object] = []
    for part in _in_place(schema, schema, frozenset({"allOf"})):
        own = part.get("properties")
        for key, value in own.items() if isinstance(own, Mapping) else ():
            properties.setdefault(str(key), value)
        wanted = part.get("required")
        required |= dict.fromkeys(str(key) for key in (wanted if isinstance(wanted, list) else ()))
        others.append(part.get("additionalProperties"))
    told = [value for value in others if value is not None]
    is_open = bool(told) and all(value is not False for value in told)
    return Members(properties, tuple(required), told[0] if is_open else None)


def kinds_of(schema: object, root: object) -> frozenset[str]:
    """JSON types that ``schema`` allows; all of them where it does not say."""
    kinds: frozenset[str] = _Kinds(root).of(schema)
    return kinds


def takes_any_string(schema: object, root: object) -> bool:
    """Whether every string fits ``schema``, as far as its keywords tell at a glance."""
    return bool(_Strings(root).of(schema))


@dataclass(frozen=True, slots=True)
class Validator:
    """Tells whether a value fits a schema, as far as that takes a bounded number of steps.

    Attributes:
        n_ways: in how many ways one value may have to be looked at; nested values multiply it.
    """

    checker: jsonschema_rs.Validator
    n_ways: int

    def is_valid(self, value: object) -> bool:
        """Whether ``value`` fits; one that would take too long to tell, or cannot be read, does not."""
        depth, n_values = _extent(value)
        if n_values * min(self.n_ways, MAX_STEPS) ** min(depth, MAX_DEPTH) > MAX_STEPS or depth > MAX_DEPTH:
            return False
        try:
            return bool(self.checker.is_valid(value))
        except (ValueError, RecursionError):
            return False


def validator_of(schema: object) -> Validator | None:
    """The validator of ``schema``; None where that is of no use."""
    if not isinstance(schema, Mapping):
        return None
    draft = str(schema.get("$schema"))
    make = next((made for word, made in VALIDATORS.items() if word in draft), None)
    bare = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    ways = _Ways(bare)
    n_ways = max(ways.of(part) for _, part in _subschemas(bare, ""))
    try:
        checker = (make or jsonschema_rs.Draft202012Validator)(
            bare, pattern_options=BOUND_PATTERNS, offline=True, validate_formats=False
        )
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError):
        return None
    return Validator(checker, n_ways)


def fits(parameters: object, arguments: Mapping[str, object]) -> bool:
    """Whether ``arguments`` fit the schema ``parameters`` wholly and have no member that it does not
    know, unless it says that others may be there."""
    if not isinstance(parameters, Mapping):
        return not arguments
    known, validator = members(parameters), validator_of(parameters)
    if any(key not in known.properties for key in arguments) and known.others is None:
        return False
    return validator is not None and validator.is_valid(dict(arguments))


def _extent(value: object) -> tuple[int, int]:
    """How deep ``value`` is nested, and how many values are in it, itself included."""
    depth, n_values, level = 0, 0, [value]
    while level:
        n_values += len(level)
        depth += 1
        level = [
            part
            for item in level
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
    return depth, n_values


class _Walk:
    """Asks a question of schemas that judge one value, each schema once."""

    if_open: Any
    """What is taken for the answer of a schema that refers to itself."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._known: dict[int, Any] = {}

    def of(self, schema: object) -> Any:
        """The answer for ``schema``."""
        if not isinstance(schema, Mapping):
            return self.of_boolean(schema is not False)
        if id(schema) not in self._known:
            self._known[id(schema)] = self.if_open
            self._known[id(schema)] = self.of_keywords(schema)
        return self._known[id(schema)]

    def target(self, schema: Schema) -> object | None:
        return resolved(schema.get("$ref"), self._root)

    def of_boolean(self, allows: bool) -> Any:
        raise NotImplementedError

    def of_keywords(self, schema: Schema) -> Any:
        raise NotImplementedError


class _Kinds(_Walk):
    if_open = ALL_KINDS

    def of_boolean(self, allows: bool) -> frozenset[str]:
        return ALL_KINDS if allows else frozenset()

    def of_keywords(self, schema: Schema) -> frozenset[str]:
        kinds = _declared(schema)
        if isinstance(schema.get("enum"), list):
            kinds &= _union(kind_of(value) for value in schema["enum"])
        if "const" in schema:
            kinds &= kind_of(schema["const"])
        for part in (self.target(schema), *_list(schema, "allOf")):
            kinds &= ALL_KINDS if part is None else self.of(part)
        for key in ("anyOf", "oneOf"):
            if _list(schema, key):
                kinds &= _union(self.of(part) for part in _list(schema, key))
        return kinds | {"null"} if schema.get("nullable") is True else kinds


class _Ways(_Walk):
    if_open = 1

    def of_boolean(self, allows: bool) -> int:  # noqa: ARG002
        return 1

    def of_keywords(self, schema: Schema) -> int:
        root = self._root if isinstance(self._root, Mapping) else {}
        n_ways = sum(int(self.of(step)) for step in _steps(schema, root))
        return min(max(1, n_ways), MAX_STEPS)


class _Strings(_Walk):
    if_open = False
    limits = frozenset(
        {"enum", "const", "pattern", "minLength", "maxLength", "format", "not", "if", "oneOf", "$dynamicRef"}
    )

    def of_boolean(self, allows: bool) -> bool:
        return allows

    def of_keywords(self, schema: Schema) -> bool:
        if self.limits & set(schema) or "string" not in _declared(schema):
            return False
        parts = (self.target(schema), *_list(schema, "allOf"))
        if any(part is not None and not self.of(part) for part in parts):
            return False
        choices = _list(schema, "anyOf")
        return not choices or any(self.of(part) for part in choices)


def kind_of(value: object) -> frozenset[str]:
    """The JSON types of ``value``: an integer is a number too."""
    if value is None or isinstance(value, bool):
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    names = {float: "number", str: "string", dict: "object", list: "array"}
    return frozenset({names[type(value)]})


def resolved(reference: object, root: object) -> object | None:
    """The schema that ``#/a/b`` points to inside ``root``."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: object = root
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdecimal():
            node = node[int(name)] if int(name) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping | bool) else None


def _declared(schema: Schema) -> frozenset[str]:
    """The types that ``type`` names; ``number`` has the integers in it."""
    declared = schema.get("type")
    names = {declared} if isinstance(declared, str) else declared
    if not isinstance(names, list | set):
        return ALL_KINDS
    kinds = frozenset(name for name in names if isinstance(name, str))
    return kinds | {"integer"} if "number" in kinds else kinds


def _in_place(schema: object, root: object, keys: frozenset[str]) -> Iterator[Schema]:
    """``schema`` and the schemas that judge the same value by its references and ``keys``, each once."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, Mapping) and id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += [resolved(part.get("$ref"), root), *(p for key in keys for p in _list(part, key))]


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
    for path, part in _subschemas(schema, where):
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/") and resolved(reference, schema) is None:
            raise _invalid(f"{path}.$ref points to nothing: {_shortened(reference)}", f"{path}.$ref")
    finished: set[int] = set()
    for path, part in _subschemas(schema, where):
        if _is_endless(part, schema, finished):
            raise _invalid(f"{path} is defined by itself alone", path)


def _is_endless(schema: Schema, root: Schema, finished: set[int]) -> bool:
    """Whether following what judges the same value as ``schema`` leads back to it. Depth first, with a
    stack of its own; ``finished`` are schemas that are known not to."""
    path: list[tuple[int, Iterator[object]]] = [(id(schema), iter(_steps(schema, root)))]
    on_path = {id(schema)}
    while path:
        step = next(path[-1][1], None)
        if step is None:
            done, _ = path.pop()
            on_path.discard(done)
            finished.add(done)
        elif id(step) in on_path:
            return True
        elif isinstance(step, Mapping) and id(step) not in finished:
            on_path.add(id(step))
            path.append((id(step), iter(_steps(step, root))))
    return False


def _steps(schema: Schema, root: Schema) -> list[object]:
    steps = [resolved(schema.get("$ref"), root), *(part for key in IN_PLACE for part in _list(schema, key))]
    return [step for step in steps if isinstance(step, Mapping)]


def _subschemas(schema: Schema, where: str) -> Iterator[tuple[str, Schema]]:
    """``schema`` and all schemas in it, with their paths."""
    waiting: list[tuple[str, object]] = [(where, schema)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        yield path, part
        for key, value in part.items():
            if key in ("enum", "const", "default", "examples", "example"):
                continue
            if isinstance(value, Mapping):
                if key in NAMED:
                    waiting += [(f"{path}.{key}.{name}", named) for name, named in value.items()]
                else:
                    waiting.append((f"{path}.{key}", value))
            elif isinstance(value, list):
                waiting += [(f"{path}.{key}[{i}]", item) for i, item in enumerate(value)]


NOTES = frozenset(
    {
        "title",
        "description",
        "$comment",
        "examples",
        "default",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
)
"""Keywords that say nothing of what fits."""
NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords that hold schemas by names."""


def _list(schema: Schema, key: str) -> list[object]:
    parts = schema.get(key)
    return parts if isinstance(parts, list) else []


def _union(kinds: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*kinds)


def _shortened(text: str, n_chars: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= n_chars else f"{text[: n_chars - 3]}..."


def _invalid(message: str, where: str) -> InputError:
    return InputError(message, param=where, code="invalid_schema")
