"""The base of all request schemas: strict models, and validation errors as clients read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from model.errors import InputError, shortened
from server.http.values import MAX_VALUES, has_too_many_values


class Schema(BaseModel):
    """A part of a request. Types are not coerced. Null means absent, in unknown fields too; an unknown field
    with any other value is refused."""

    model_config = ConfigDict(
        extra="allow",  # checked below: null is allowed
        strict=True,
        frozen=True,
        protected_namespaces=(),
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if value is not None:
                raise PydanticCustomError("extra_forbidden", "unknown", {"name": name})
        return self


def entry_error(name: str, reason: str) -> PydanticCustomError:
    """The error of an object's first invalid entry, for validators; ``reason`` ends a sentence."""
    return PydanticCustomError("entry_invalid", "{reason}", {"name": name, "reason": reason})


def _refuse_true(value: bool) -> bool:
    if value:
        raise ValueError("this server does not do that")
    return value


OnlyFalse = Annotated[bool, AfterValidator(_refuse_true), WithJsonSchema({"type": "boolean", "const": False})]
"""A switch of OpenAI's that is always off here, so that only false is accepted."""

Untouched = Annotated[JsonValue | None, Field(exclude=True)]
"""A field that clients send and that needs no action: any value is accepted, and none is used."""

S = TypeVar("S", bound=Schema)
T = TypeVar("T")

Several = Annotated[list[T], Field(fail_fast=True)]
"""A list of which only the first error is reported: a million errors would take seconds to format."""
MESSAGES = Field(max_length=32_768)
PARTS = Field(max_length=16_384)
TOOLS = Field(max_length=1024)
STOPS = Field(max_length=64)
"""Bounds on such lists, in every dialect; a longer list is refused before its items are validated."""


def parse(schema: type[S], body: bytes) -> S:
    """Parse ``body`` as a ``schema``. Half a surrogate pair, which a client sends that cuts a text inside a
    character, becomes U+FFFD.

    Raises:
        InputError: the body is not JSON or does not match; the error names the first field at fault.
    """
    if len(body) > MAX_VALUES and has_too_many_values(body):
        raise InputError(f"The body has more than {MAX_VALUES} values.", code="too_many_values")
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        if _is_no_json(error) and (whole := _without_surrogates(body)) != body:
            return parse(schema, whole)
        raise _input_error(error, body) from None


def _is_no_json(error: ValidationError) -> bool:
    return (
        error.errors(include_url=False, include_context=False, include_input=False)[0]["type"]
        == "json_invalid"
    )


_HIGH, _LOW = rb"u[dD][89aAbB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATES = re.compile(rb"\\(?<!\\\\)((?:\\\\)*+)(?:(%b\\%b)|%b|%b)" % (_HIGH, _LOW, _HIGH, _LOW))
"""Backslashes of which the last one escapes a pair of surrogates (the second group), or one alone."""
_MAX_SURROGATES = 1 << 18
"""A body with more of them is left as it is: replacing them would take seconds."""


def _without_surrogates(body: bytes) -> bytes:
    """``body`` with every escaped surrogate replaced that is not part of a pair."""
    if not 0 < body.count(rb"\ud") + body.count(rb"\uD") <= _MAX_SURROGATES:
        return body
    return _SURROGATES.sub(lambda match: match[0] if match[2] else rb"\%bufffd" % match[1], body)


def _input_error(error: ValidationError, body: bytes) -> InputError:
    details = error.errors(include_url=False, include_context=True, include_input=False)
    if details[0]["type"] == "json_invalid":
        reason = details[0]["ctx"]["error"]
        return InputError(f"The body is not valid JSON: {reason}.", code="invalid_json")
    data = from_json(body)
    if not isinstance(data, dict):
        return InputError("The body must be a JSON object.", code="invalid_json")
    paths = [_path_in(data, detail) for detail in details]
    # Of a union's branches, the client means the one that matches deepest, or whose type fits.
    related = [i for i, path in enumerate(paths) if path[:1] == paths[0][:1]]
    best = max(related, key=lambda i: (len(paths[i]), not details[i]["type"].endswith("_type")))
    param = shortened(_dotted(paths[best]), 200)
    return InputError(_sentence(details[best], param), param=param or None, code=_code(details[best]))


def _path_in(data: object, detail: ErrorDetails) -> list[int | str]:
    """The place of an error in ``data``: its loc without the names of union branches among it."""
    loc = detail["loc"]
    if detail["type"] in ("extra_forbidden", "entry_invalid"):
        loc = (*loc, detail["ctx"]["name"])
    path: list[int | str] = []
    for step, following in zip(loc, (*loc[1:], None), strict=True):
        if not isinstance(data, dict | list):
            break
        if isinstance(data, dict) and _is_branch(data, step, following):
            continue
        container: Any = data
        try:
            data = container[step]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(step)
    if detail["type"] == "missing":
        path.append(loc[-1])
    if detail["type"] == "union_tag_not_found":
        path.append(detail["ctx"]["discriminator"].strip("'"))
    return path


def _is_branch(data: Mapping[str, Any], step: int | str, following: int | str | None) -> bool:
    """Whether ``step`` is the name of a union's branch (``text``) that is also the name of a field
    (``{"type": "text", "text": ...}``): what follows is then a field beside it, not one of its own."""
    inner = data.get(step) if isinstance(step, str) else None
    return step in data and following in data and not (isinstance(inner, Mapping) and following in inner)


def _dotted(path: Sequence[int | str]) -> str:
    text = ""
    for step in path:
        name = '""' if step == "" else step
        text += f"[{step}]" if isinstance(step, int) else f".{name}" if text else f"{name}"
    return text


def _sentence(detail: ErrorDetails, param: str) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return f"Unrecognized request argument supplied: {param}."
        case "missing" | "union_tag_not_found":
            return f"Missing required parameter: '{param}'."
        case "union_tag_invalid":
            tag, expected = context["tag"], context["expected_tags"]
            kind, told = context["discriminator"].strip("'"), shortened(tag, 200)
            return f"'{param}' has the {kind} '{told}', which is not supported; it may be {expected}."
        case "value_error":
            return f"Invalid value for '{param}': {context['error']}."
        case _:
            message = detail["msg"]
            return f"Invalid value for '{param}': {message[:1].lower()}{message[1:]}."


def _code(detail: ErrorDetails) -> str:
    match detail["type"]:
        case "extra_forbidden":
            return "unknown_parameter"
        case "missing" | "union_tag_not_found":
            return "missing_required_parameter"
        case kind if kind.endswith("_type"):
            return "invalid_type"
        case _:
            return "invalid_value"
