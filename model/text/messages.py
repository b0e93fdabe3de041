"""Brings OpenAI's messages into the form that Qwen3.5's templates take, or says what is wrong where.

* ``developer`` is ``system``. Leading system messages are merged, joined by a blank line; a later one
  stays where it stands (role :data:`LATE_SYSTEM`), so that the prompt before it does not change.
* Text parts are joined with nothing between them, in order, as the templates join them.
* An assistant's ``reasoning_content`` or ``reasoning`` is its thought; where neither is sent, a thought
  in tags at the very head of the content is taken out of it. Tags further on are text.
* Results stand in the order of their calls, which is all that tells a model which is which: the prompt has no
  ids. They are bound by ``tool_call_id``, those without one in order; what cannot be bound is refused.
* A call's arguments are the object they encode. Text that encodes no object is kept as it is, as the
  one argument ``arguments``; nothing at all (``""``, ``null``) is no arguments.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.errors import InputError

LATE_SYSTEM = "late_system"
ROLES = ("system", "developer", "user", "assistant", "tool")
THINK, END_THINK = "<think>", "</think>"

Message = dict[str, Any]


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages with only ``role``, ``content`` (a string) and, for an assistant, ``reasoning_content``,
    ``tool_calls`` (arguments always a mapping) and ``is_closed`` (its content says where the thought ends).

    Raises:
        InputError: naming ``messages[i]`` and the field at fault.
    """
    if not messages:
        raise InputError("messages must hold at least one message", param="messages")
    normal: list[Message] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InputError(f"{where} must be an object", param=where)
        if message.get("role") == "tool" and not index:
            raise InputError(f"{where}: a tool's result must follow the call", param=where)
        normal.append(_one(message, where))
    return _merge_leading_system(_results_in_order(messages, normal))


def _results_in_order(messages: Sequence[Mapping[str, Any]], normal: Sequence[Message]) -> list[Message]:
    """``normal`` with the results of each round of calls in the order of the calls. A round is the calls
    of assistant messages that follow each other, and the results up to the next assistant message."""
    ordered = list(normal)
    round_ = _Round()
    for index, message in enumerate(normal):
        if message["role"] == "assistant":
            if round_.places:
                round_.bind(messages, ordered)
                round_ = _Round()
            calls = messages[index].get("tool_calls") or ()
            if not calls:
                round_ = _Round()
            round_.call_ids += [call.get("id") for call in calls]
        elif message["role"] == "tool":
            round_.places.append(index)
    round_.bind(messages, ordered)
    return ordered


@dataclass
class _Round:
    """Calls that wait for results.

    Attributes:
        call_ids: of the calls, in their order; None for a call without one.
        places: where the results stand.
    """

    call_ids: list[object] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)

    def bind(self, messages: Sequence[Mapping[str, Any]], ordered: list[Message]) -> None:
        """Put each result in the place of its call.

        Raises:
            InputError: naming the ``tool_call_id`` of a result that is of no call, or one too many, or
                behind a call whose result is missing.
        """
        if not self.call_ids:
            return  # results of calls that the client has forgotten: there is nothing to confuse
        result_ids = [messages[place].get("tool_call_id") for place in self.places]
        if (
            not any(call_id is not None for call_id in result_ids)
            or len(result_ids) == len(self.call_ids) == 1
        ):
            return  # their order tells, and one result can only be of the one call
        number_of = {call_id: i for i, call_id in enumerate(self.call_ids) if call_id is not None}
        results: dict[int, int] = {}  # from a call's number to its result's place
        nameless: list[int] = []
        for place, call_id in zip(self.places, result_ids, strict=True):
            if call_id is None or not number_of:
                nameless.append(place)
            elif call_id not in number_of:
                raise _unbound(place, "is the id of none of the calls before it")
            elif number_of[call_id] in results:
                raise _unbound(place, "has a result already")
            else:
                results[number_of[call_id]] = place
        free = [number for number in range(len(self.call_ids)) if number not in results]
        if len(nameless) > len(free):
            raise _unbound(nameless[len(free)], "is missing, and every call has its result")
        results |= dict(zip(free, nameless, strict=False))
        if any(number not in results for number in range(len(results))):
            missing = next(number for number in range(len(results)) if number not in results)
            later = results[min(number for number in results if number > missing)]
            raise _unbound(later, f"names a call behind one, {self.call_ids[missing]!r}, that has no result")
        contents = [ordered[results[number]] for number in range(len(results))]
        for place, message in zip(self.places, contents, strict=True):
            ordered[place] = message


def _unbound(place: int, reason: str) -> InputError:
    where = f"messages[{place}].tool_call_id"
    return InputError(f"{where} {reason}", param=where)


def is_question(message: Message) -> bool:
    """Whether a user asks in ``message``; templates tell a tool's result by its tag."""
    return message["role"] == "user" and not message["content"].startswith("<tool_response>")


def _one(message: Mapping[str, Any], where: str) -> Message:
    role = message.get("role")
    if role in ("system", "developer"):
        return {"role": "system", "content": _text(message, where)}
    if role == "user":
        return {"role": "user", "content": _text(message, where)}
    if role == "tool":
        # A tool that returned nothing is sent as null by some clients.
        content = "" if message.get("content") is None else _text(message, where)
        return {"role": "tool", "content": content}
    if role == "assistant":
        return _assistant(message, where)
    raise InputError(f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role")


def _assistant(message: Mapping[str, Any], where: str) -> Message:
    for field in ("audio", "function_call"):
        if message.get(field) is not None:
            raise InputError(f"{where}.{field} is not supported", param=f"{where}.{field}")
    content = "" if message.get("content") is None else _text(message, where)
    if not content and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    normal: Message = {"role": "assistant", "content": content}
    reasoning = _reasoning(message, where)
    if reasoning is None and content.lstrip().startswith(THINK) and END_THINK in content:
        thought, _, content = content.lstrip().removeprefix(THINK).partition(END_THINK)
        reasoning = thought.strip()
        normal |= {"content": content.lstrip("\n"), "is_closed": True}
    if reasoning is not None:
        normal["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls:
        normal["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(_list(calls, where))
        ]
    return normal


def _reasoning(message: Mapping[str, Any], where: str) -> str | None:
    for field in ("reasoning_content", "reasoning"):
        value = message.get(field)
        if value is None:
            continue
        if not isinstance(value, str):
            raise InputError(f"{where}.{field} must be a string", param=f"{where}.{field}")
        return value
    return None


def _list(calls: object, where: str) -> Sequence[object]:
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise InputError(f"{where}.tool_calls must be a list", param=f"{where}.tool_calls")
    return calls


def _call(call: object, where: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise InputError(f"{where} must be a function call with a name", param=where)
    arguments = _arguments(function.get("arguments"), where)
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    if arguments is None or isinstance(arguments, Mapping):
        return dict(arguments or {})
    if not isinstance(arguments, str):
        param = f"{where}.function.arguments"
        raise InputError(f"{param} must be a string or an object", param=param)
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    if parsed is None:
        return {}
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _text(message: Mapping[str, Any], where: str) -> str:
    """The content as one string."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    where = f"{where}.content"
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise InputError(f"{where} must be a string or a list of text parts", param=where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = {"text": "text", "refusal": "refusal"}.get(kind) if isinstance(kind, str) else None
    if not isinstance(part, Mapping) or field is None:
        raise InputError(f"{where}: parts of type {kind!r} are not supported, only text", param=where)
    text = part.get(field)
    if not isinstance(text, str):
        raise InputError(f"{where}.{field} must be a string", param=f"{where}.{field}")
    return text


def _merge_leading_system(messages: list[Message]) -> list[Message]:
    """One system message at the head at most; later ones get the role :data:`LATE_SYSTEM`."""
    n_leading = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    for message in messages[n_leading:]:
        if message["role"] == "system":
            message["role"] = LATE_SYSTEM
    if n_leading < 2:
        return messages
    merged = "\n\n".join(message["content"] for message in messages[:n_leading] if message["content"])
    return [{"role": "system", "content": merged}, *messages[n_leading:]]
