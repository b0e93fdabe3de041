"""Conversation shapes: the ways in which clients send a history again.

A shape is a generator function. It yields :class:`Turn` after :class:`Turn` and is sent each
turn's :class:`Answer`; it decides from that what the client sends next. Shapes know nothing of
servers; ``turns.py`` runs them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass

Message = dict[str, object]


@dataclass(frozen=True)
class Turn:
    """One request of a client.

    Attributes:
        messages: the whole history, as a chat client sends it.
        session: which conversation of the shape it belongs to.
        thinking: ``enable_thinking``.
        is_cancelled: close the connection before the first token.
        must_call: ``tool_choice`` is ``required``.
        keyless: send no session key even where the run uses them (a side request knows none).
    """

    messages: tuple[Message, ...]
    session: str = "main"
    thinking: bool = False
    is_cancelled: bool = False
    keyless: bool = False
    tools: tuple[Message, ...] = ()
    must_call: bool = False


@dataclass(frozen=True)
class Answer:
    """What a server answered; ``calls`` as OpenAI's ``tool_calls``."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Message, ...] = ()


Shape = Generator[Turn, Answer, None]


class Writer:
    """Makes text that no other shape has: words of a seeded stream."""

    def __init__(self, seed: str, n_words: int, n_system_words: int | None = None) -> None:
        self._random = random.Random(seed)
        self._n_words = n_words
        self._n_system_words = n_system_words or n_words

    def text(self, share: float = 1.0) -> str:
        return self._text(int(self._n_words * share))

    def system_text(self) -> str:
        return self._text(self._n_system_words)

    def system(self) -> Message:
        return {"role": "system", "content": self.system_text()}

    def _text(self, n_words: int) -> str:
        words = (self._random.choice(_WORDS) for _ in range(max(4, n_words)))
        return " ".join(words).capitalize() + "."

    def user(self, share: float = 1.0) -> Message:
        return {"role": "user", "content": self.text(share)}


def said(answer: Answer, *, echo: bool = False) -> Message:
    """The reply as clients send it back: mostly without its thought."""
    message: Message = {"role": "assistant", "content": answer.content}
    if echo:
        message["reasoning_content"] = answer.reasoning
    return message


def _append(write: Writer, n_turns: int, *, thinking: bool, echo: bool = False) -> Shape:
    messages: list[Message] = [write.system()]
    for _ in range(n_turns):
        messages.append(write.user())
        answer = yield Turn(tuple(messages), thinking=thinking)
        messages.append(said(answer, echo=echo))


def append(write: Writer, n_turns: int) -> Shape:
    return _append(write, n_turns, thinking=False)


def append_thinking(write: Writer, n_turns: int) -> Shape:
    return _append(write, n_turns, thinking=True)


def append_echoed(write: Writer, n_turns: int) -> Shape:
    return _append(write, n_turns, thinking=True, echo=True)


def regenerate(write: Writer, n_turns: int) -> Shape:
    messages: list[Message] = [write.system()]
    for _ in range(n_turns):
        messages.append(write.user())
        yield Turn(tuple(messages))
        answer = yield Turn(tuple(messages))
        messages.append(said(answer))


def edit_last(write: Writer, n_turns: int) -> Shape:
    messages: list[Message] = [write.system()]
    for _ in range(n_turns):
        yield Turn((*messages, write.user()))
        messages.append(write.user())
        answer = yield Turn(tuple(messages))
        messages.append(said(answer))


def edit_early(write: Writer, n_turns: int) -> Shape:
    messages: list[Message] = [write.system()]
    for _ in range(n_turns):
        messages.append(write.user())
        answer = yield Turn(tuple(messages))
        messages.append(said(answer))
    messages[3] = write.user()
    yield Turn(tuple(messages[:-1]))
    messages.extend([write.user()])
    yield Turn(tuple(messages))


def tool_loop(write: Writer, n_turns: int) -> Shape:
    """Two questions answered over several tool rounds, whose thoughts vanish at the next question, and a
    short one: what a server reads ahead of a question must find one, or it would count for nothing.

    Where the model made no call of its own, the client pretends that it did.
    """
    messages: list[Message] = [write.system()]
    for turn in range(2):
        messages.append(write.user())
        for round_ in range(n_turns):
            answer = yield Turn(tuple(messages), thinking=True, tools=(_LOOKUP,), must_call=True)
            calls = answer.calls or (_call(f"call_{turn}_{round_}"),)
            messages.append(said(answer, echo=True) | {"tool_calls": list(calls)})
            share = 0.5 / len(calls)
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": write.text(share)} for call in calls
            ]
        answer = yield Turn(tuple(messages), thinking=True, tools=(_LOOKUP,))
        messages.append(said(answer, echo=True))
    messages.append(write.user(0.05))
    yield Turn(tuple(messages), thinking=True, tools=(_LOOKUP,))


def _call(call_id: str) -> Message:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"word": "tide"}'},
    }


def interleaved(write: Writer, n_turns: int) -> Shape:
    chats: list[list[Message]] = [[write.system()] for _ in range(3)]
    for _ in range(n_turns):
        for index, messages in enumerate(chats):
            messages.append(write.user())
            answer = yield Turn(tuple(messages), session=f"chat-{index}")
            messages.append(said(answer))


def side_request(write: Writer, n_turns: int) -> Shape:
    """Between two turns the client asks for a title, with another system prompt and no key."""
    messages: list[Message] = [write.system()]
    for _ in range(n_turns):
        messages.append(write.user())
        answer = yield Turn(tuple(messages))
        messages.append(said(answer))
        title = {"role": "system", "content": "Give the conversation a title of four words."}
        question = {"role": "user", "content": str(messages[1]["content"])[:200] + write.text(0.05)}
        yield Turn((title, question), keyless=True)


def shared_system(write: Writer, n_turns: int) -> Shape:
    system = write.system()
    for chat in range(n_turns):
        messages: list[Message] = [system]
        for _ in range(2):
            messages.append(write.user(0.3))
            answer = yield Turn(tuple(messages), session=f"chat-{chat}")
            messages.append(said(answer))


def exact_repeat(write: Writer, n_turns: int) -> Shape:
    """The same request over and over, then the conversation goes on."""
    messages: list[Message] = [write.system(), write.user()]
    for _ in range(n_turns):
        answer = yield Turn(tuple(messages))
    messages += [said(answer), write.user()]
    yield Turn(tuple(messages))


def clock(write: Writer, n_turns: int) -> Shape:
    """The system prompt ends in the time of day."""
    system = write.system_text()
    messages: list[Message] = []
    for minute in range(n_turns):
        messages.append(write.user())
        now = {"role": "system", "content": f"{system} It is {9 + minute % 12}:{minute % 60:02d}."}
        answer = yield Turn((now, *messages))
        messages.append(said(answer))


def cancel_and_retry(write: Writer, n_turns: int) -> Shape:
    messages: list[Message] = [write.system()]
    for turn in range(n_turns):
        messages.append(write.user())
        if turn > 0:
            yield Turn(tuple(messages), is_cancelled=True)
        answer = yield Turn(tuple(messages))
        messages.append(said(answer))


def toggled_thinking(write: Writer, n_turns: int) -> Shape:
    messages: list[Message] = [write.system()]
    for turn in range(n_turns):
        messages.append(write.user())
        answer = yield Turn(tuple(messages), thinking=turn % 2 == 0)
        messages.append(said(answer))


SHAPES: dict[str, Callable[[Writer, int], Shape]] = {
    "append": append,
    "append, thinking": append_thinking,
    "append, thoughts echoed": append_echoed,
    "regenerate": regenerate,
    "edit last": edit_last,
    "edit early": edit_early,
    "tool loop, new query": tool_loop,
    "interleaved": interleaved,
    "side request": side_request,
    "shared system prompt": shared_system,
    "exact repeat": exact_repeat,
    "clock in system prompt": clock,
    "cancel and retry": cancel_and_retry,
    "toggled thinking": toggled_thinking,
}

_LOOKUP: Message = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}

_WORDS = tuple(
    word
    for line in (
        "the a of to in on at by for with from over under near old new red blue green small large quiet",
        "river stone house garden window table letter paper winter summer morning evening light water",
        "road hill field tree bird horse ship market bread salt music story name number question answer",
        "walks finds keeps sends reads writes opens closes carries brings turns holds asks tells waits",
    )
    for word in line.split()
)
