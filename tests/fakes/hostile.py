"""Makes bodies that no client should send: valid ones with a few places made wrong, and JSON that is none."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

Json = Any

USER = {"role": "user", "content": "Hi"}
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "enum": ["x", "y"]},
        "n": {"type": "integer", "minimum": 0},
        "l": {"type": "array", "items": {"$ref": "#/$defs/p"}},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"p": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "x"}}

BODIES: dict[str, Json] = {
    "/v1/chat/completions": {
        "model": "demo",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            USER,
            {"role": "assistant", "content": None, "reasoning_content": "t", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
            USER,
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "temperature": 0.5,
        "logit_bias": {"5": 1},
        "stop": ["a"],
        "n": 1,
        "max_tokens": 4,
        "stream": False,
        "stream_options": {"include_usage": True},
        "metadata": {"session_id": "s"},
        "reasoning": {"effort": "low"},
        "chat_template_kwargs": {"enable_thinking": False},
        "logprobs": True,
        "top_logprobs": 2,
    },
    "/v1/completions": {"model": "demo", "prompt": ["a", "b"], "logprobs": 1, "stop": "x", "max_tokens": 3},
    "/v1/responses": {
        "model": "demo",
        "instructions": "i",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
        "tool_choice": "auto",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 5,
        "store": False,
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "model": "demo",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": "x"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "/v1/messages/count_tokens": {
        "model": "demo",
        "messages": [USER],
        "tools": [{"name": "f", "input_schema": {}}],
    },
    "/v1/responses/input_tokens": {"model": "demo", "input": "Hi"},
    "/tokenize": {"messages": [USER], "tools": [TOOL]},
    "/detokenize": {"tokens": [1, 2, 3]},
}


def _nested(depth: int, kind: str) -> Json:
    value: Json = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


STRINGS = (
    *("", " ", "\0", "\n", "Hi", "<|im_end|>", "<|im_start|>system\n", "<think>", "</think>"),
    *("<tool_call>\n<function=f>", "\ud83d", "\ude00", "\U0001f600", "é" * 50, "\u2028\x85\u202e"),
    *("../../etc/passwd", "{{ 7*7 }}", "{% for x in range(9**9) %}", "%s%n", "__class__"),
    *("x", "x" * 65, "x" * 1000, "x" * 20_000),
)
NUMBERS = (
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**40),
    *(0.5, -0.0, 1e308, 1e-320, float("inf"), float("-inf"), float("nan")),
)
PIECES: tuple[Json, ...] = (USER, TOOL, CALL, SCHEMA, {"type": "text", "text": "t"}, {"type": "image_url"})
VALUES: tuple[Callable[[random.Random], Json], ...] = (
    lambda _: None,
    lambda r: r.choice([True, False]),
    lambda r: r.choice(NUMBERS),
    lambda r: r.choice(STRINGS),
    lambda r: r.choice(STRINGS),
    lambda r: r.choice([[], {}]),
    lambda r: [r.choice([0, None, "a", {}])] * r.choice([1, 200, 3000]),
    lambda r: {str(i): i for i in range(r.choice([1, 70, 5000]))},
    lambda r: _nested(r.choice([3, 60, 300]), r.choice(["list", "object"])),
    lambda r: schema(r, 3),
    lambda r: r.choice(PIECES),
)
TYPES: tuple[Json, ...] = (
    *("string", "object", "array", "integer", "null", "nothing"),
    *([], 7, ["string", "null"]),
)
BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "multipleOf")
PATTERNS = ("^a+$", "(", "[z-a]", "(a+)+$", "a{1000}", "(?=x)", "\\p{L}", "(a|a)*b", 3)
NOTES = ("title", "description", "default", "examples", "$schema", "x-é")
KEYWORDS: tuple[Callable[[random.Random, int], tuple[str, Json]], ...] = (
    lambda r, _: ("type", r.choice(TYPES)),
    lambda r, n: ("properties", {f"p{i}": schema(r, n - 1) for i in range(r.choice([0, 1, 3, 40]))}),
    lambda r, _: ("required", r.choice([["p0"], ["zz"], True, "p0", [1], ["p0"] * 3])),
    lambda r, n: ("additionalProperties", r.choice([True, False, schema(r, n - 1)])),
    lambda r, n: ("patternProperties", {str(r.choice(PATTERNS)): schema(r, n - 1)}),
    lambda r, n: ("items", r.choice([schema(r, n - 1), [schema(r, n - 1)], True, 3])),
    lambda r, n: (r.choice(["anyOf", "oneOf", "allOf"]), [schema(r, n - 1)] * r.choice([0, 1, 2, 9])),
    lambda r, n: (r.choice(["not", "if", "then", "contains", "propertyNames"]), schema(r, n - 1)),
    lambda r, _: ("$ref", r.choice(["#", "#/$defs/a", "#/$defs/zz", "http://a/b", "", 5])),
    lambda r, n: ("$defs", {"a": schema(r, n - 1), "é": {"$ref": "#/$defs/a"}}),
    lambda r, _: ("enum", r.choice([[], ["a", "b"], [1, "1", None, {}], "a", list(range(500))])),
    lambda r, _: ("const", r.choice([1, "a", None, {"a": 1}])),
    lambda r, _: ("pattern", r.choice(PATTERNS)),
    lambda r, _: ("format", r.choice(["date-time", "uuid4", "nothing", 3])),
    lambda r, _: (r.choice(BOUNDS), r.choice([0, 1, -1, 3.5, 10**9, "1", None, 300007])),
    lambda r, _: (r.choice(NOTES), r.choice(["t", None, [1]])),
)


def schema(r: random.Random, depth: int) -> Json:
    """A JSON schema, or what somebody might take for one."""
    if depth <= 0:
        return r.choice([{}, True, False, {"type": "string"}, {"$ref": "#"}, None, "string"])
    return dict(r.choice(KEYWORDS)(r, depth) for _ in range(r.choice([1, 2, 4])))


NEEDED = ("model", "messages", "input", "prompt", "max_tokens")


def body(r: random.Random, path: str) -> bytes:
    """A body for ``path``."""
    value = json.loads(json.dumps(BODIES[path]))
    for name in [
        name for name in value if name not in ("model", "messages", "input", "prompt", "max_tokens")
    ]:
        if r.random() < 0.6:
            del value[name]
    for _ in range(r.choice([0, 1, 1, 1, 2, 5])):
        value = _mutated(r, value)
    raw = json.dumps(value, ensure_ascii=r.random() < 0.5).encode("utf-8", "surrogatepass")
    return raw if r.random() < 0.9 else _broken(r, raw)


def _mutated(r: random.Random, value: Json) -> Json:
    """``value`` with one place made wrong."""
    places = list(_places(value))
    if not places:
        return _value(r)
    container, key = r.choice(places)
    match r.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[r.choice(["x", "", "é", "__proto__", "type", "role", "a" * 300])] = _value(r)
        case 2:
            container[key] = [container[key]] * r.choice([1, 2, 100])
        case 3:
            container[key] = copy.deepcopy(schema(r, 3))
        case _:
            container[key] = _value(r)
    return value


def _value(r: random.Random) -> Json:
    return copy.deepcopy(r.choice(VALUES)(r))


def _places(value: Json, depth: int = 0) -> Any:
    """Every key and index in ``value``, with what holds it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        if depth < 12:
            yield from _places(value[key], depth + 1)


def _broken(r: random.Random, raw: bytes) -> bytes:
    """``raw``, no JSON any more, or hardly."""
    at = r.randrange(len(raw) + 1)
    return r.choice(
        [
            raw[:at],
            raw[:at] + b"\xff\xfe" + raw[at:],
            raw + raw,
            b"[" * 5000,
            b"",
            b"\xef\xbb\xbf" + raw,
            b"NaN",
        ]
    )
