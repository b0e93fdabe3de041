"""Types a call's raw parameter text by the schema that the request gave for it, and by nothing else.

The XML form carries no types: ``02134`` may be a number or a postcode. The rule:

* Where the schema allows a string, the text is that string, except ``null`` where null is allowed, and
  a JSON object or array where that is allowed.
* Elsewhere the text becomes the first of null, boolean, integer, number, object, array that is allowed
  and that it spells (``True`` and ``None`` count: the family's template writes Python's words).
* Of several readings the first that fits the whole schema is taken: where a list of values has both
  words and numbers, ``1`` is the number if that is what the list holds.
* Text that fits none of the allowed types stays a string, as does a parameter without a schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from model.text.schemas.fitting import Validator, validator_of
from model.text.schemas.reading import kinds_of, members, takes_any_string

STRING = frozenset({"string"})
JUDGING = ("$schema", "$defs", "definitions", "properties", "patternProperties", "additionalProperties")
"""Keywords of a tool's schema that bear on one parameter alone."""


@dataclass(frozen=True, slots=True)
class ParameterType:
    """What a parameter's raw text may become.

    Attributes:
        kinds: the JSON types that are allowed.
        takes_any_string: every string fits.
    """

    key: str = ""
    kinds: frozenset[str] = STRING
    takes_any_string: bool = True
    validator: Validator | None = None

    def is_string(self, begun: str) -> bool:
        """Whether text that begins with ``begun`` is certain to become a string, as it stands."""
        if self.kinds == STRING:
            return True
        begun = begun.lstrip()
        if not self.takes_any_string or not begun:
            return False
        may_be_null = "null" in self.kinds and begun.rstrip() == "null"[: len(begun.rstrip())]
        return not may_be_null and _container_kind(begun) not in self.kinds

    def to_json(self, raw: str) -> str:
        """``raw`` as the JSON text of the value that it stands for."""
        readings = list(_readings(raw, self.kinds))
        if len(readings) == 1 or self.validator is None:
            return readings[0]
        fitting = (text for text in readings if self.validator.is_valid({self.key: json.loads(text)}))
        return next(fitting, readings[0])


def parameter_type(parameters: object, key: str) -> ParameterType:
    """What ``parameters``, a tool's schema, says of ``key``; a string where it says nothing."""
    known = members(parameters)
    schema = known.properties.get(key, known.others)
    if schema is None or not isinstance(parameters, Mapping):
        return ParameterType(key)
    judging = {name: parameters[name] for name in JUDGING if name in parameters}
    if key not in (judging.get("properties") or {}):
        judging["properties"] = {key: schema}
    return ParameterType(
        key, kinds_of(schema, parameters), takes_any_string(schema, parameters), validator_of(judging)
    )


def quoted(text: str) -> str:
    """``text`` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _readings(raw: str, kinds: frozenset[str]) -> Iterator[str]:
    """What ``raw`` may mean where ``kinds`` are allowed, the likeliest first; at least one."""
    text = raw.strip()
    allows_string = "string" in kinds
    if "null" in kinds and text in (("null",) if allows_string else ("null", "None")):
        yield "null"
    container = _container(text, kinds)
    if container is not None:
        yield container
    if allows_string:
        yield quoted(raw)
    if "boolean" in kinds and text in ("true", "True", "false", "False"):
        yield text.lower()
    number = _number(text, kinds)
    if number is not None:
        yield number
    if not allows_string:
        yield quoted(raw)


def _number(text: str, kinds: frozenset[str]) -> str | None:
    if not kinds & {"integer", "number"}:
        return None
    value = _parsed(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if "number" in kinds or isinstance(value, int):
        return text
    return str(int(value)) if value == int(value) else None


def _container_kind(text: str) -> str | None:
    return {"{": "object", "[": "array"}.get(text[:1])


def _container(text: str, kinds: frozenset[str]) -> str | None:
    is_allowed = _container_kind(text) in kinds
    return text if is_allowed and isinstance(_parsed(text), dict | list) else None


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
