"""Turns a client's JSON schema into one that llguidance enforces, and tells what of it is lost.

Clients send what pydantic and zod write. What says the same in other words is written in those that the
library takes (``nullable``, ``oneOf`` of things that differ, names from a list). Annotations go.
What is left of a schema is a promise that cannot be kept: it is told by its path, and whether
that is a refusal is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from model.text.schemas.reading import Schema, kinds_of, resolved

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""Formats that are enforced; every other is an annotation, as JSON Schema has it."""
LOST = (
    "if",
    "contains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
)
"""Keywords that nothing enforces."""
COMPANIONS = ("then", "else", "minContains", "maxContains", "$dynamicAnchor", "$recursiveAnchor")
"""Keywords that say nothing without one of those."""
SCHEMAS = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "prefixItems",
)
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
STRING_LIMITS = frozenset({"enum", "const", "maxLength", "pattern", "format"})
NOTES = frozenset({"title", "description", "$comment", "examples", "default", "deprecated"})


@dataclass
class Enforceable:
    """What becomes of a schema.

    Attributes:
        schema: what is enforced.
        lost: paths of keywords that are not.
    """

    schema: object = True
    lost: list[str] = field(default_factory=list)


def enforceable(
    schema: object,
    where: str,
    *,
    takes_pattern: Callable[[str], bool],
    max_string_chars: int | None = None,
    root: object = None,
) -> Enforceable:
    """Rewrite ``schema``.

    Args:
        where: its place in the request, for the paths.
        takes_pattern: whether the library can read a regular expression.
        max_string_chars: length of strings that have no limit of their own; None leaves them without.
        root: what references lead into; None for the schema itself.
    """
    rewriter = _Rewriter(schema if root is None else root, takes_pattern, max_string_chars)
    return Enforceable(rewriter.rewrite(schema, where), rewriter.lost)


class _Rewriter:
    def __init__(self, root: object, takes_pattern: Callable[[str], bool], max_chars: int | None) -> None:
        self._root = root
        self._takes_pattern = takes_pattern
        self._max_chars = max_chars
        self.lost: list[str] = []

    def rewrite(self, schema: object, where: str) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        new = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
        for key in COMPANIONS:
            new.pop(key, None)
        for key in LOST:
            # Empty, it asks for nothing; but an empty ``if`` always holds.
            value = new.pop(key, None)
            if value is not None and (value not in ({}, True) or key in ("if", "contains")):
                self.lost.append(f"{where}.{key}")
        self._rewrite_strings(new, where)
        self._rewrite_numbers(new, where)
        if self._is_never(new, where):
            return False
        self._rewrite_lists(new, where)
        self._rewrite_objects(new, where)
        self._rewrite_choices(new, where)
        self._rewrite_parts(new, where)
        return _nullable(new) if new.pop("nullable", None) is True else new

    def _rewrite_strings(self, new: dict[str, Any], where: str) -> None:
        if new.get("format") not in FORMATS:
            new.pop("format", None)
        pattern = new.get("pattern")
        if isinstance(pattern, str) and not self._takes_pattern(pattern):
            del new["pattern"]
            self.lost.append(f"{where}.pattern")
        named = new.get("type")
        is_string = named == "string" or (isinstance(named, list) and "string" in named)
        if self._max_chars is not None and is_string and not STRING_LIMITS & set(new):
            new["maxLength"] = max(self._max_chars, new.get("minLength", 0))

    def _rewrite_numbers(self, new: dict[str, Any], where: str) -> None:
        if new.get("multipleOf", 0) > MAX_MULTIPLE:
            del new["multipleOf"]
            self.lost.append(f"{where}.multipleOf")
        for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(new.get(exclusive), bool):  # as in draft 4
                is_exclusive = new.pop(exclusive)
                if is_exclusive and limit in new:
                    new[exclusive] = new.pop(limit)

    def _is_never(self, new: dict[str, Any], where: str) -> bool:
        """Take ``not`` out; whether nothing is left that may stand there."""
        if "not" not in new:
            return False
        unwanted = new.pop("not")
        said = set(unwanted) - NOTES if isinstance(unwanted, Mapping) else set()
        if unwanted is True or (isinstance(unwanted, Mapping) and not said):
            return True
        if said == {"type"}:
            excluded = kinds_of(unwanted, self._root)
            kinds = kinds_of({"type": new["type"]} if "type" in new else {}, self._root) - excluded
            if "number" in excluded or not {"number", "integer"} & excluded:
                new["type"] = sorted(kinds)
                return not kinds
        if said and said <= {"enum", "const"} and isinstance(new.get("enum"), list):
            values = unwanted.get("enum", []) + ([unwanted["const"]] if "const" in unwanted else [])
            new["enum"] = [value for value in new["enum"] if value not in values]
            return not new["enum"]
        if unwanted is not False:
            self.lost.append(f"{where}.not")
        return False

    def _rewrite_lists(self, new: dict[str, Any], where: str) -> None:
        if new.pop("uniqueItems", False) is True and new.get("maxItems", 2) > 1:
            self.lost.append(f"{where}.uniqueItems")

    def _rewrite_objects(self, new: dict[str, Any], where: str) -> None:
        if "unevaluatedProperties" in new:
            others = new.pop("unevaluatedProperties")
            if any(key in new for key in ("$ref", "allOf", "anyOf", "oneOf")):
                if others is not True:
                    self.lost.append(f"{where}.unevaluatedProperties")
            else:
                new.setdefault("additionalProperties", others)
        if "propertyNames" in new:
            names = new.pop("propertyNames")
            if not self._rewrite_names(new, names):
                self.lost.append(f"{where}.propertyNames")

    def _rewrite_names(self, new: dict[str, Any], names: object) -> bool:
        """Say with other keywords what names members may have; False where that cannot be."""
        names = self._target(names) if isinstance(names, Mapping) else names
        said = set(names) - NOTES - {"type"} if isinstance(names, Mapping) else set()
        if not isinstance(names, Mapping) or "string" not in kinds_of(names, self._root):
            return names is True
        if not said:
            return True
        if said <= {"enum", "const"} and "patternProperties" not in new:
            allowed = names.get("enum", [names["const"]] if "const" in names else [])
            others, known = new.get("additionalProperties", True), new.get("properties", {})
            new["properties"] = {name: known.get(name, others) for name in allowed if isinstance(name, str)}
            new["additionalProperties"] = False
            return True
        if said == {"pattern"} and not {"properties", "patternProperties"} & set(new):
            if not self._takes_pattern(names["pattern"]):
                return False
            new["patternProperties"] = {names["pattern"]: new.get("additionalProperties", True)}
            new["additionalProperties"] = False
            return True
        return False

    def _rewrite_choices(self, new: dict[str, Any], where: str) -> None:
        choices = new.pop("oneOf", None)
        if not isinstance(choices, list):
            return
        if not all(self._differ(one, other) for one, other in combinations(choices[:MAX_CHOICES], 2)):
            self.lost.append(f"{where}.oneOf")
        rewritten = [self.rewrite(choice, f"{where}.oneOf[{i}]") for i, choice in enumerate(choices)]
        if "anyOf" in new:
            new["allOf"] = [*new.get("allOf", []), {"anyOf": rewritten}]
        else:
            new["anyOf"] = rewritten
            new[_DONE] = True

    def _differ(self, one: object, other: object) -> bool:
        """Whether no value fits both, as far as types and marked members tell."""
        kinds = [kinds_of(schema, self._root) for schema in (one, other)]
        kinds = [found - {"integer"} if "number" in found else found for found in kinds]
        shared = kinds[0] & kinds[1]
        if {"integer"} in kinds and any("number" in found for found in kinds):
            shared |= {"integer"}
        if not shared:
            return True
        values = [_values(self._target(schema)) for schema in (one, other)]
        if values[0] is not None and values[1] is not None:
            return not any(value in values[1] for value in values[0])
        return shared == {"object"} and self._marks_differ(self._target(one), self._target(other))

    def _marks_differ(self, one: Schema, other: Schema) -> bool:
        """Whether a member that both must have is a different constant in each."""
        both = set(one.get("required") or ()) & set(other.get("required") or ())
        for name in both:
            values = [_values(self._target(s.get("properties", {}).get(name))) for s in (one, other)]
            if values[0] and values[1] and not any(value in values[1] for value in values[0]):
                return True
        return False

    def _target(self, schema: object) -> Schema:
        for _ in range(MAX_CHOICES):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = resolved(schema["$ref"], self._root)
        return schema if isinstance(schema, Mapping) else {}

    def _rewrite_parts(self, new: dict[str, Any], where: str) -> None:
        is_done = new.pop(_DONE, False)
        for key in SCHEMAS:
            value = new.get(key)
            if isinstance(value, list) and not (key == "anyOf" and is_done):
                new[key] = [self.rewrite(part, f"{where}.{key}[{i}]") for i, part in enumerate(value)]
            elif isinstance(value, Mapping):
                new[key] = self.rewrite(value, f"{where}.{key}")
        for key in NAMED_SCHEMAS:
            if isinstance(new.get(key), Mapping):
                new[key] = {
                    name: self.rewrite(part, f"{where}.{key}.{name}") for name, part in new[key].items()
                }


MAX_CHOICES = 64
"""Alternatives that are compared with each other, pair by pair."""
MAX_MULTIPLE = 1000
"""An automaton that divides by more has as many states."""
_DONE = "\0anyOf"


def _values(schema: Schema) -> list[object] | None:
    """The values that ``schema`` lists, if it does."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _nullable(new: dict[str, Any]) -> dict[str, Any]:
    """``new`` with null beside it; what references lead to stays at the top."""
    kept: dict[str, Any] = {key: new.pop(key) for key in ("$defs", "definitions") if key in new}
    return {**kept, "anyOf": [new, {"type": "null"}]}
