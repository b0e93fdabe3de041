"""Tells whether a value fits a JSON schema, in a bounded number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jsonschema_rs

from model.text.schemas.reading import Schema, Walk, extent_of, members, steps, subschemas

MAX_STEPS = 500_000
"""Of a validation: some tens of milliseconds."""
MAX_DEPTH = 100
BOUND_PATTERNS = jsonschema_rs.RegexOptions(size_limit=2**20, dfa_size_limit=2**20)
"""Linear in the text, unlike a backtracking engine."""
VALIDATORS = {
    "draft-04": jsonschema_rs.Draft4Validator,
    "draft-06": jsonschema_rs.Draft6Validator,
    "draft-07": jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
}
"""By a word of ``$schema``; the latest draft otherwise."""


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
        depth, n_values = extent_of(value)
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
    n_ways = max(ways.of(part) for _, part in subschemas(bare, ""))
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


class _Ways(Walk):
    if_open = 1

    def of_boolean(self, allows: bool) -> int:  # noqa: ARG002
        return 1

    def of_keywords(self, schema: Schema) -> int:
        root = self._root if isinstance(self._root, Mapping) else {}
        n_ways = sum(int(self.of(step)) for step in steps(schema, root))
        return min(max(1, n_ways), MAX_STEPS)
