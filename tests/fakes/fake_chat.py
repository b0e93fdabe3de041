"""A chat client and a chat template over integers, and the requests of a conversation through a store.

A message is a list of ids. The template behaves as Qwen3.5's: thoughts before the last user query
vanish, the generation prompt opens a thought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cache.boundaries import PromptShape, due_while_decoding
from cache.entry import RunningEntry
from cache.planner import SlotKey, TokenIds, longest_common_token_prefix
from cache.selection import Choice
from cache.store import Store
from tests.fakes.fake_state import FakeState

START, END, NEWLINE, THINK, CLOSE = range(1, 6)
SYSTEM, USER, ASSISTANT, TOOL = range(6, 10)
FIRST_WORD = 100


@dataclass(frozen=True)
class Message:
    role: int
    content: tuple[int, ...]
    thought: tuple[int, ...] = ()


class Words:
    """Ids that never repeat: whatever is common between two prompts is common on purpose."""

    def __init__(self) -> None:
        self._next = FIRST_WORD

    def __call__(self, n: int) -> tuple[int, ...]:
        self._next += n
        return tuple(range(self._next - n, self._next))


@dataclass(frozen=True)
class Prompt:
    ids: TokenIds
    shape: PromptShape


def render(messages: Sequence[Message], *, thinking: bool = True) -> Prompt:
    """Ids and boundaries of a prompt for the next reply to ``messages``."""
    ids, starts = _ids(messages, thinking)
    placeholder = Message(ASSISTANT, (98,))
    next_renders = [
        [*messages, placeholder, Message(USER, (99,))],
        [*messages, placeholder, Message(TOOL, (99,))],
    ]
    shared = {longest_common_token_prefix(ids, _ids(other, thinking)[0]) for other in next_renders}
    queries = [s for s, m in zip(starts, messages, strict=False) if m.role == USER]
    system_end = starts[1] if messages[0].role == SYSTEM else 0
    return Prompt(
        ids,
        PromptShape(
            message_starts=tuple(starts),
            shared_points=tuple(sorted(shared)),
            last_user_start=queries[-1] if queries else None,
            system_end=system_end,
            questions=tuple(queries),
        ),
    )


def _ids(messages: Sequence[Message], thinking: bool) -> tuple[TokenIds, list[int]]:
    ids: list[int] = []
    starts: list[int] = []
    last_query = max((i for i, m in enumerate(messages) if m.role == USER), default=-1)
    for i, message in enumerate(messages):
        starts.append(len(ids))
        ids += [START, message.role, NEWLINE]
        if message.role == ASSISTANT and i > last_query:
            ids += [THINK, NEWLINE, *message.thought, CLOSE, NEWLINE]
        ids += [*message.content, END, NEWLINE]
    starts.append(len(ids))
    ids += [START, ASSISTANT, NEWLINE, THINK, NEWLINE]
    if not thinking:
        ids += [NEWLINE, CLOSE, NEWLINE]
    return np.array(ids, dtype=np.uint32), starts


@dataclass
class Tally:
    """Tokens fed against tokens that were in no sequence before."""

    n_fed: int = 0
    n_new: int = 0

    @property
    def ratio(self) -> float:
        return self.n_fed / max(self.n_new, 1)


@dataclass
class Client:
    """Sends prompts through a store over fake states, and counts what is read."""

    store: Store
    words: Words = field(default_factory=Words)
    chunk: int = 2048
    tally: Tally = field(default_factory=Tally)
    seen: list[TokenIds] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    leaves_first_out: bool = False

    def ask(
        self,
        slot: SlotKey,
        messages: Sequence[Message],
        *,
        n_reply: int = 60,
        n_thought: int = 0,
        thinking: bool = True,
        cancel_after: int | None = None,
    ) -> Message:
        """One request; returns the reply. ``cancel_after`` ends it after so many tokens read."""
        prompt = render(messages, thinking=thinking)
        known = max((longest_common_token_prefix(prompt.ids, s) for s in self.seen), default=0)
        choice = self.store.plan(slot, prompt.ids, prompt.shape)
        running = self.store.take(choice)
        self.choices.append(replace(choice, source=None))
        n_read = self._prefill(running, choice, cancel_after)
        self.tally.n_fed += n_read
        reply = Message(ASSISTANT, (), ())
        assert np.array_equal(running.ids.view, prompt.ids[: len(running)])
        if cancel_after is None:
            reply = Message(ASSISTANT, self.words(n_reply), self.words(n_thought) if thinking else ())
            thought = (*reply.thought, CLOSE, NEWLINE) if thinking else ()
            self._decode(running, (*thought, *reply.content, END))
            self.tally.n_new += len(prompt.ids) - known
        else:
            self.tally.n_new += max(0, min(len(running), len(prompt.ids)) - known)
        if self.leaves_first_out and not self.seen:
            self.tally = Tally()
        self.seen.append(running.ids.view.copy())
        self.store.save(running)
        return reply

    def _prefill(self, running: RunningEntry, choice: Choice, cancel_after: int | None) -> int:
        n_read = 0
        rest = choice.prompt_ids[choice.plan.suffix_start :]
        while n_read < len(rest) and (cancel_after is None or n_read < cancel_after):
            ids = rest[n_read : n_read + self.chunk]
            state = running.state
            assert isinstance(state, FakeState)
            start = state.length
            captures = [p for p in choice.captures if start < p <= start + len(ids)]
            checkpoints = state.feed(ids.tolist(), captures)
            running.ids.extend(ids)
            for checkpoint in checkpoints:
                running.capture(checkpoint)
            self.store.enforce()
            n_read += len(ids)
        return n_read

    def _decode(self, running: RunningEntry, tokens: Sequence[int]) -> None:
        state = running.lend()
        assert isinstance(state, FakeState)
        newest = len(running)
        for token in tokens:
            state.feed_unchecked((token,))
            running.ids.append(token)
            if due_while_decoding(len(running), newest):
                running.capture(state.snapshot())
                newest = len(running)
        running.give_back(state)
