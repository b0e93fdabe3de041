"""Conversations as people and agents have them, as requests over made-up ids, without a model.

A scenario is a list of :class:`Ask`, in order of time; ``replay.py`` plays them through the real planner and
store over states that are counted. What a model would reply does not depend on what is remembered, so a
scenario is the same for every policy and budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cache.boundaries import PromptShape
from cache.planner import TokenIds, longest_common_token_prefix

START, END, NEWLINE, THINK, CLOSE = range(1, 6)
SYSTEM, USER, ASSISTANT, TOOL = range(6, 10)
_FIRST_WORD = 100


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request.

    Attributes:
        session: whose.
        t_s: when it comes.
        ids: uint32 [n], the prompt.
        shape: its boundaries.
        reply: uint32 [m], what is fed while the reply is written.
        n_new: tokens of the prompt that stood in no sequence of the scenario before, at least one.
        is_ahead: read in idle time: nobody asked for it.
    """

    session: str
    t_s: float
    ids: TokenIds
    shape: PromptShape
    reply: TokenIds
    n_new: int
    is_ahead: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    role: int
    content: tuple[int, ...]
    thought: tuple[int, ...] = ()


@dataclass
class Script:
    """Writes a scenario down: what a client sends, what is replied.

    The template is that of the models: what a message holds stands between control tokens, thoughts before
    the last question vanish, a reply begins inside its thought.
    """

    asks: list[Ask] = field(default_factory=list)
    _seen: list[TokenIds] = field(default_factory=list)
    _n_words: int = _FIRST_WORD

    def words(self, n: int) -> tuple[int, ...]:
        """Ids that never come again: what two prompts share they share on purpose."""
        self._n_words += n
        return tuple(range(self._n_words - n, self._n_words))

    def say(self, role: int, n: int) -> Message:
        return Message(role, self.words(n))

    def ask(
        self, messages: Sequence[Message], n_reply: int, n_thought: int = 0, *, session: str = "a"
    ) -> Message:
        """A request; returns the reply."""
        reply = Message(ASSISTANT, self.words(n_reply), self.words(n_thought))
        ids, starts = _rendered(messages)
        fed = [*reply.thought, CLOSE, NEWLINE, *reply.content, END]
        self._add(ids, _shape(messages, ids, starts), np.array(fed, dtype=np.uint32), session)
        return reply

    def read_ahead(self, messages: Sequence[Message], *, session: str = "a") -> None:
        """What is known of the next prompt once the last reply is written: all before its words."""
        ids, _ = _rendered([*messages, Message(USER, (98,))])
        other, _ = _rendered([*messages, Message(USER, (99,))])
        known = ids[: longest_common_token_prefix(ids, other)]
        self._add(known, PromptShape(), known[:0], session, is_ahead=True)

    def _add(
        self, ids: TokenIds, shape: PromptShape, reply: TokenIds, session: str, *, is_ahead: bool = False
    ) -> None:
        known = max((longest_common_token_prefix(ids, old) for old in self._seen), default=0)
        t_s = 30.0 * len(self.asks)
        self.asks.append(Ask(session, t_s, ids, shape, reply, max(1, len(ids) - known), is_ahead))
        self._seen.append(np.concatenate([ids, reply]))


def _rendered(messages: Sequence[Message]) -> tuple[TokenIds, list[int]]:
    ids: list[int] = []
    starts: list[int] = []
    last_question = max((i for i, m in enumerate(messages) if m.role == USER), default=-1)
    for i, message in enumerate(messages):
        starts.append(len(ids))
        ids += [START, message.role, NEWLINE]
        if message.role == ASSISTANT and i > last_question:
            ids += [THINK, NEWLINE, *message.thought, CLOSE, NEWLINE]
        ids += [*message.content, END, NEWLINE]
    starts.append(len(ids))
    ids += [START, ASSISTANT, NEWLINE, THINK, NEWLINE]
    return np.array(ids, dtype=np.uint32), starts


def _shape(messages: Sequence[Message], ids: TokenIds, starts: list[int]) -> PromptShape:
    answer = Message(ASSISTANT, (98,))
    shared = {
        longest_common_token_prefix(ids, _rendered([*messages, answer, Message(role, (99,))])[0])
        for role in (USER, TOOL)
    }
    questions = tuple(s for s, m in zip(starts, messages, strict=False) if m.role == USER)
    return PromptShape(
        message_starts=tuple(starts),
        shared_points=tuple(sorted(shared)),
        last_user_start=questions[-1] if questions else None,
        system_end=starts[1] if messages[0].role == SYSTEM else 0,
        questions=questions,
    )


def chat_with_edits() -> list[Ask]:
    """A chat of twelve turns, then three edits, further and further back."""
    script = Script()
    messages = [script.say(SYSTEM, 600)]
    for _ in range(12):
        messages.append(script.say(USER, 150))
        messages.append(script.ask(messages, 350))
    for back in (2, 5, 9):
        at = len(messages) - 2 * back
        messages[at:] = [script.say(USER, 150)]
        messages.append(script.ask(messages, 350))
    return script.asks


def _agent(script: Script, n_questions: int = 4, n_calls: int = 10) -> list[Message]:
    messages = [script.say(SYSTEM, 8000)]
    for _ in range(n_questions):
        messages.append(script.say(USER, 200))
        _loop(script, messages, n_calls)
    return messages


def _loop(script: Script, messages: list[Message], n_calls: int) -> None:
    for _ in range(n_calls):
        messages.append(script.ask(messages, 60, n_thought=120))
        messages.append(script.say(TOOL, 2200))
    messages.append(script.ask(messages, 300, n_thought=200))


def agent_with_edits() -> list[Ask]:
    """An agent: four questions of ten calls, then edits of the third and of the second question."""
    script = Script()
    messages = _agent(script)
    for number in (2, 1):
        at = [i for i, m in enumerate(messages) if m.role == USER][number]
        messages[at:] = [script.say(USER, 200)]
        _loop(script, messages, 3)
    return script.asks


def agent_regenerates() -> list[Ask]:
    """An agent whose last answer is asked for again, after the next prompt was read ahead."""
    script = Script()
    messages = _agent(script, n_questions=2)
    script.read_ahead(messages)
    script.ask(messages[:-1], 300, n_thought=200)
    return script.asks


def clock() -> list[Ask]:
    """A clock in the last line of a system prompt of 2,500 tokens, over six turns."""
    script = Script()
    text = script.words(2480)
    messages: list[Message] = []
    for _ in range(6):
        now = Message(SYSTEM, (*text, *script.words(6), *(97,) * 14))
        messages.append(script.say(USER, 100))
        messages.append(script.ask([now, *messages], 200))
    return script.asks


def sub_agents() -> list[Ask]:
    """An agent that sends four sub-agents off from its own history and goes on."""
    script = Script()
    messages = _agent(script, n_questions=1)
    for _ in range(4):
        task = [*messages, script.say(USER, 300)]
        _loop(script, task, 3)
    messages.append(script.say(USER, 200))
    _loop(script, messages, 3)
    return script.asks


def compaction() -> list[Ask]:
    """An agent whose client puts a summary in the place of all but the last messages, three times."""
    script = Script()
    messages = _agent(script, n_questions=1)
    for _ in range(3):
        messages.append(script.say(USER, 200))
        _loop(script, messages, 6)
        summary = script.say(USER, 1500)
        messages[1:-3] = [summary]
    messages.append(script.say(USER, 200))
    _loop(script, messages, 3)
    return script.asks


SCENARIOS: dict[str, Callable[[], list[Ask]]] = {
    "chat of 12 turns, three edits": chat_with_edits,
    "agent, edits of two questions": agent_with_edits,
    "agent, regenerate at the end": agent_regenerates,
    "clock, system prompt of 2,500": clock,
    "agent with four sub-agents": sub_agents,
    "agent, three compactions": compaction,
}
