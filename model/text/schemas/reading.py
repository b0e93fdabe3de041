"""Reads what a JSON schema says of a value, by walks that are linear in its size, references included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
ALL_KINDS = frozenset({"string", "null", "boolean", "integer", "number", "object", "array"})
IN_PLACE = ("anyOf", "oneOf", "allOf")
"""Keywords whose schemas judge the same value."""
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


class Walk:
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


class _Kinds(Walk):
    if_open = ALL_KINDS

    def of_boolean(self, allows: bool) -> frozenset[str]:
        return ALL_KINDS if allows else frozenset()

    def of_keywords(self, schema: Schema) -> frozenset[str]:
        kinds = _declared(schema)
        if isinstance(schema.get("enum"), list):
            kinds &= _union(kind_of(value) for value in schema["enum"])
        if "const" in schema:
            kinds &= kind_of(schema["const"])
        for part in (self.target(schema), *listed(schema, "allOf")):
            kinds &= ALL_KINDS if part is None else self.of(part)
        for key in ("anyOf", "oneOf"):
            if listed(schema, key):
                kinds &= _union(self.of(part) for part in listed(schema, key))
        return kinds | {"null"} if schema.get("nullable") is True else kinds


class _Strings(Walk):
    if_open = False
    limits = frozenset(
        {"enum", "const", "pattern", "minLength", "maxLength", "format", "not", "if", "oneOf", "$dynamicRef"}
    )

    def of_boolean(self, allows: bool) -> bool:
        return allows

    def of_keywords(self, schema: Schema) -> bool:
        if self.limits & set(schema) or "string" not in _declared(schema):
            return False
        parts = (self.target(schema), *listed(schema, "allOf"))
        if any(part is not None and not self.of(part) for part in parts):
            return False
        choices = listed(schema, "anyOf")
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


def steps(schema: Schema, root: Schema) -> list[Schema]:
    steps = [resolved(schema.get("$ref"), root), *(part for key in IN_PLACE for part in listed(schema, key))]
    return [step for step in steps if isinstance(step, Mapping)]


def subschemas(schema: Schema, where: str) -> Iterator[tuple[str, Schema]]:
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


def extent_of(value: object) -> tuple[int, int]:
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
            waiting += [resolved(part.get("$ref"), root), *(p for key in keys for p in listed(part, key))]


def listed(schema: Schema, key: str) -> list[object]:
    parts = schema.get(key)
    return parts if isinstance(parts, list) else []


def _union(kinds: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*kinds)
