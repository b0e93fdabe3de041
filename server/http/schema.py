"""The ground of all request schemas: strict models, and validation errors as a client reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, from_json

from model.errors import InputError


class Schema(BaseModel):
    """A part of a request. Unknown fields are refused, types are not coerced, null is absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _refuse_true(value: bool) -> bool:
    if value:
        raise ValueError("this server does not do that")
    return value


OnlyFalse = Annotated[bool, AfterValidator(_refuse_true), WithJsonSchema({"type": "boolean", "const": False})]
"""A switch of OpenAI's that is off here, and may be said to be."""

S = TypeVar("S", bound=Schema)


def parse(schema: type[S], body: bytes) -> S:
    """Read ``body`` as a ``schema``.

    Raises:
        InputError: not JSON, or not of the schema; names the first field at fault.
    """
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        raise _input_error(error, body) from None


def _input_error(error: ValidationError, body: bytes) -> InputError:
    details = error.errors(include_url=False, include_context=True, include_input=False)
    if details[0]["type"] == "json_invalid":
        reason = details[0]["ctx"]["error"]
        return InputError(f"The body is not valid JSON: {reason}.", code="invalid_json")
    data = from_json(body)
    if not isinstance(data, dict):
        return InputError("The body must be a JSON object.", code="invalid_json")
    paths = [_path_in(data, detail) for detail in details]
    # Of a union's branches, the one that got deepest, or whose type fits, is the one the client meant.
    related = [i for i, path in enumerate(paths) if path[:1] == paths[0][:1]]
    best = max(related, key=lambda i: (len(paths[i]), not details[i]["type"].endswith("_type")))
    param = _dotted(paths[best])
    return InputError(_sentence(details[best], param), param=param or None, code=_code(details[best]))


def _path_in(data: object, detail: ErrorDetails) -> list[int | str]:
    """The place of an error in ``data``: its loc without the names of union branches among it."""
    path: list[int | str] = []
    for step in detail["loc"]:
        if not isinstance(data, dict | list):
            break
        container: Any = data
        try:
            data = container[step]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(step)
    if detail["type"] == "missing":
        path.append(detail["loc"][-1])
    if detail["type"] == "union_tag_not_found":
        path.append(detail["ctx"]["discriminator"].strip("'"))
    return path


def _dotted(path: Sequence[int | str]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
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
            kind = context["discriminator"].strip("'")
            return f"'{param}' has the {kind} '{tag}', which is not supported; it may be {expected}."
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
