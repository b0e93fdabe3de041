"""Types a call's raw parameter text by the schema that the request gave for it, and by nothing else.

The XML form carries no types: ``02134`` may be a number or a postcode. The rule:

* Where the schema allows a string, the text is that string, except ``null`` where null is allowed, and
  a JSON object or array where that is allowed.
* Elsewhere the text becomes the first of null, boolean, integer, number, object, array that is allowed
  and that it spells (``True`` and ``None`` count: the family's template writes Python's words).
* Text that fits none of the allowed types stays a string, as does a parameter without a schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

Schema = Mapping[str, Any]
ALL_KINDS = frozenset({"string", "null", "boolean", "integer", "number", "object", "array"})
MAX_REFERENCES = 32


def parameter_kinds(parameters: object, key: str) -> frozenset[str]:
    """JSON types that ``parameters`` (a tool's schema) allows for ``key``; only ``string`` for a key that
    the schema does not know."""
    if not isinstance(parameters, Mapping):
        return frozenset({"string"})
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    if schema is None:
        schema = parameters.get("additionalProperties")
    return (
        _kinds(schema, parameters, MAX_REFERENCES) if isinstance(schema, Mapping) else frozenset({"string"})
    )


def to_json(raw: str, kinds: frozenset[str]) -> str:
    """``raw`` as the JSON text of a value of one of ``kinds``, or of the string itself."""
    text = raw.strip()
    if "string" in kinds:
        if text == "null" and "null" in kinds:
            return "null"
        return _container(text, kinds) or quoted(raw)
    if "null" in kinds and text in ("null", "None"):
        return "null"
    if "boolean" in kinds and text in ("true", "True", "false", "False"):
        return text.lower()
    return _number(text, kinds) or _container(text, kinds) or quoted(raw)


def quoted(text: str) -> str:
    """``text`` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def fits(parameters: object, arguments: Mapping[str, object]) -> bool:
    """Whether ``arguments`` have every required key, no key that the schema does not know, and values of
    the allowed types."""
    if not isinstance(parameters, Mapping):
        return not arguments
    required, known = parameters.get("required") or [], parameters.get("properties") or {}
    open_ended = parameters.get("additionalProperties", False) is not False
    if any(key not in arguments for key in required):
        return False
    return all(
        (key in known or open_ended) and _kind(value) & parameter_kinds(parameters, key)
        for key, value in arguments.items()
    )


def _kind(value: object) -> frozenset[str]:
    if value is None or isinstance(value, bool):
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    names = {float: "number", str: "string", dict: "object", list: "array"}
    return frozenset({names[type(value)]})


def _kinds(schema: Schema, root: Schema, n_references: int) -> frozenset[str]:
    """Types that ``schema`` allows; all of them where it does not say."""
    target = _resolve(schema.get("$ref"), root)
    if target is not None and n_references:
        return _kinds(target, root, n_references - 1)
    kinds = ALL_KINDS
    declared = schema.get("type")
    if isinstance(declared, str):
        kinds &= {declared}
    elif isinstance(declared, list):
        kinds &= {kind for kind in declared if isinstance(kind, str)}
    if isinstance(schema.get("enum"), list):
        kinds &= _union(_kind(value) for value in schema["enum"])
    if "const" in schema:
        kinds &= _kind(schema["const"])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            kinds &= _union(_kinds(s, root, n_references - 1) for s in _schemas(schema[key], n_references))
    for part in _schemas(schema.get("allOf"), n_references):
        kinds &= _kinds(part, root, n_references - 1)
    return kinds | {"null"} if schema.get("nullable") is True else kinds


def _schemas(value: object, n_references: int) -> list[Schema]:
    parts = value if isinstance(value, list) and n_references else []
    return [part for part in parts if isinstance(part, Mapping)]


def _union(kinds: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*kinds)


def _resolve(reference: object, root: Schema) -> Schema | None:
    """The schema that ``#/a/b`` points to inside ``root``."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: object = root
    for name in reference.removeprefix("#").split("/")[1:]:
        node = node.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None


def _number(text: str, kinds: frozenset[str]) -> str | None:
    if not kinds & {"integer", "number"}:
        return None
    value = _parsed(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if "number" in kinds or isinstance(value, int):
        return text
    return str(int(value)) if value == int(value) else None


def _container(text: str, kinds: frozenset[str]) -> str | None:
    wanted = {"{": "object", "[": "array"}.get(text[:1])
    return text if wanted in kinds and isinstance(_parsed(text), dict | list) else None


def _parsed(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
