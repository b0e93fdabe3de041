"""Bodies that are nearly right: JSON with a few of its values replaced, lost, doubled or renamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2**70,
    "",
    " ",
    "x",
    "auto",
    "<|im_end|>",
    "\ud7ff\u2028\x00",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"type": "text"},
    {"type": "tool_reference", "tool_name": "x"},
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    {"properties": []},
)
"""What clients with faults send in place of something."""


def mutants(bodies: Sequence[Any], n: int, *, seed: int) -> Iterator[Any]:
    """``n`` bodies, each one of ``bodies`` with one to four changes; the same ones for the same ``seed``."""
    random = Random(seed)
    for i in range(n):
        body = _copy(bodies[i % len(bodies)])
        for _ in range(random.randint(1, 4)):
            _change(body, random)
        yield body


def _change(body: Any, random: Random) -> None:
    holder = random.choice(list(_holders(body)))
    if isinstance(holder, dict):
        _change_object(holder, random)
    else:
        _change_list(holder, random)


def _change_object(holder: dict[str, Any], random: Random) -> None:
    if not holder:
        holder["extra"] = _odd(random)
        return
    key = random.choice(list(holder))
    match random.randrange(5):
        case 0:
            del holder[key]
        case 1:
            holder[f"{key}_"] = holder.pop(key)
        case 2:
            holder[random.choice(("type", "role", "content", "name", "id", "extra"))] = _odd(random)
        case _:
            holder[key] = random.choice((_odd(random), _copy(holder[random.choice(list(holder))])))


def _change_list(holder: list[Any], random: Random) -> None:
    if not holder:
        holder.append(_odd(random))
        return
    index = random.randrange(len(holder))
    match random.randrange(4):
        case 0:
            del holder[index]
        case 1:
            holder.insert(index, _copy(random.choice(holder)))
        case 2:
            random.shuffle(holder)
        case _:
            holder[index] = _odd(random)


def _odd(random: Random) -> Any:
    return _copy(random.choice(ODD))


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _holders(value: Any) -> Iterator[Any]:
    """All objects and lists in ``value``."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


def shortened(value: Any, n_chars: int = 60) -> Any:
    """``value`` with every long text cut: its form is what matters."""
    if isinstance(value, dict):
        return {key: shortened(inner, n_chars) for key, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner, n_chars) for inner in value]
    return value[:n_chars] if isinstance(value, str) else value
