"""Warm equals cold: whatever was read, edited, cancelled or evicted before, a greedy reply is the
one that a fresh process gives (invariant 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.state import Recurrent, State
from model.text.chat import RenderedPrompt
from server.engine.admission import LoopOptions
from server.engine.drafting import Drafting
from server.engine.loop import EngineLoop
from tests.fakes.drafters import Always, Guesser
from tests.fakes.driver import Driver, chat_prompt

START, END, SYSTEM, USER, ASSISTANT, OPENER = range(6)
FIRST_WORD, N_WORDS = 6, 50

Act = Literal["turn", "regenerate", "edit", "shorten", "repeat", "cancel", "ahead", "title", "several"]
MakeLoop = Callable[..., EngineLoop]


@dataclass
class Conversation:
    """Messages as a client keeps them: (role, words); a reply's thought opener is never sent back."""

    messages: list[tuple[int, list[int]]] = field(default_factory=list)

    def prompt(self) -> RenderedPrompt:
        names = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant"}
        return chat_prompt(
            [[START, role, *words, END] for role, words in self.messages],
            roles=[names[role] for role, _ in self.messages],
            header=[START, ASSISTANT, OPENER],
        )

    def add(self, role: int, words: list[int]) -> None:
        self.messages.append((role, words))


@dataclass(frozen=True)
class Step:
    act: Act
    session: int
    size: int
    seed: int


steps = st.builds(
    Step,
    act=st.sampled_from(
        [
            "turn",
            "turn",
            "turn",
            "regenerate",
            "edit",
            "shorten",
            "repeat",
            "cancel",
            "ahead",
            "title",
            "several",
        ]
    ),
    session=st.integers(0, 2),
    size=st.integers(1, 90),
    seed=st.integers(0, 10_000),
)


class Walk:
    """Applies steps to one warm loop and compares every reply with a cold one."""

    def __init__(
        self, make_loop: MakeLoop, *, budget_bytes: int = 2**30, drafting: Drafting | None = None
    ) -> None:
        self._make_loop = make_loop
        self._warm = Driver(make_loop(budget_bytes=budget_bytes, drafting=drafting))
        self._chats = [Conversation([(SYSTEM, _words(70, seed=1))]) for _ in range(3)]
        self._cold: dict[bytes, tuple[int, ...]] = {}

    def take(self, step: Step) -> None:
        chat = self._chats[step.session]
        session = f"session-{step.session}"
        words = _words(step.size, step.seed)
        if step.act == "title":
            title = Conversation([(SYSTEM, _words(9, seed=2)), (USER, words)])
            self._compare(title, None)
            return
        if len(chat.messages) < 2 or step.act == "turn":
            chat.add(USER, words)
        elif step.act == "edit":
            index = 1 + 2 * (step.seed % max(1, len(chat.messages) // 2))
            chat.messages = [*chat.messages[:index], (USER, words)]
        elif step.act == "shorten":
            del chat.messages[max(2, len(chat.messages) - 2) :]
        elif step.act == "regenerate" and chat.messages[-1][0] == ASSISTANT:
            chat.messages.pop()
        if chat.messages[-1][0] == ASSISTANT:
            chat.add(USER, words)
        if step.act == "cancel":
            self._cancel(chat, session, n_steps=step.seed % 5)
        if step.act == "several":
            self._compare_together(words)
        if step.act == "ahead":
            self._warm.read_ahead(chat.prompt(), session=session)
            self._warm.run()
        reply = self._compare(chat, session)
        if step.act == "repeat":
            self._compare(chat, session)
        chat.add(ASSISTANT, reply)

    def _compare(self, chat: Conversation, session: str | None) -> list[int]:
        prompt = chat.prompt()
        warm = self._warm.ask(prompt, session=session)
        assert warm.failed is None
        assert warm.token_ids[0] == self._cold_ids(prompt), warm.report
        return list(warm.token_ids[0])

    def _compare_together(self, words: list[int]) -> None:
        """New chats over one system prompt, all at once, in a slot that knows that prompt."""
        chats = [
            Conversation([(SYSTEM, _words(70, seed=1)), (USER, [*words, FIRST_WORD + i])]) for i in range(3)
        ]
        outcomes = [self._warm.submit(chat.prompt(), session="session-0") for chat in chats]
        self._warm.run()
        for chat, outcome in zip(chats, outcomes, strict=True):
            assert outcome.token_ids[0] == self._cold_ids(chat.prompt()), outcome.report

    def _cancel(self, chat: Conversation, session: str, n_steps: int) -> None:
        outcome = self._warm.submit(chat.prompt(), session=session, max_tokens=40)
        for _ in range(n_steps):
            self._warm.loop.step()
        self._warm.loop.cancel(outcome.id)
        self._warm.run()

    def _cold_ids(self, prompt: RenderedPrompt) -> tuple[int, ...]:
        key = prompt.ids.tobytes()
        if key not in self._cold:
            cold = Driver(self._make_loop(options=LoopOptions(prefill_tokens=128, drafts=False)))
            self._cold[key] = cold.ask(prompt).token_ids[0]
        return self._cold[key]


def _words(n: int, seed: int) -> list[int]:
    return [FIRST_WORD + (seed * 7919 + i * i * 31 + i * seed) % N_WORDS for i in range(n)]


SCENARIO = [
    Step("turn", 0, 40, 3),
    Step("turn", 0, 20, 4),
    Step("turn", 1, 90, 5),
    Step("regenerate", 0, 9, 6),
    Step("edit", 0, 30, 7),
    Step("cancel", 1, 60, 8),
    Step("repeat", 0, 10, 9),
    Step("title", 0, 50, 10),
    Step("ahead", 1, 25, 11),
    Step("several", 0, 12, 12),
    Step("shorten", 0, 5, 13),
    Step("turn", 1, 33, 14),
]


def walk_through(
    make_loop: MakeLoop,
    script: Sequence[Step],
    *,
    budget_bytes: int = 2**30,
    drafting: Drafting | None = None,
) -> None:
    walk = Walk(make_loop, budget_bytes=budget_bytes, drafting=drafting)
    for step in script:
        walk.take(step)


def test_a_scripted_day_of_turns_and_edits_replies_as_fresh_processes_do(make_loop: MakeLoop) -> None:
    walk_through(make_loop, SCENARIO)


def wild_drafts() -> Drafting:
    """Guesses that are mostly wrong, at every depth."""
    return Drafting(lambda *_: Guesser(), Always((4, 2, 6, 1, 3)))


def test_a_day_with_wild_drafts_replies_as_fresh_processes_without_drafts_do(make_loop: MakeLoop) -> None:
    walk_through(make_loop, SCENARIO, drafting=wild_drafts())


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, min_size=2, max_size=10), budget=st.sampled_from([2**30, 600_000, 150_000]))
def test_any_sequence_with_wild_drafts_replies_as_fresh_processes_do(
    make_loop: MakeLoop, script: list[Step], budget: int
) -> None:
    walk_through(make_loop, script, budget_bytes=budget, drafting=wild_drafts())


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, min_size=2, max_size=10), budget=st.sampled_from([2**30, 600_000, 150_000]))
def test_any_sequence_of_operations_replies_as_fresh_processes_do(
    make_loop: MakeLoop, script: list[Step], budget: int
) -> None:
    walk_through(make_loop, script, budget_bytes=budget)


def test_a_recurrent_state_that_is_reset_on_restore_is_noticed(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault this project exists to avoid: KV keeps its prefix, the recurrent state is lost."""
    restore = State.restore

    def restore_without_memory(self: State, checkpoint: object) -> None:
        restore(self, checkpoint)  # type: ignore[arg-type]
        self.recurrent = [
            Recurrent(mx.zeros_like(layer.window), mx.zeros_like(layer.matrix)) for layer in self.recurrent
        ]

    monkeypatch.setattr(State, "restore", restore_without_memory)
    with pytest.raises(AssertionError, match="ReplayFromCheckpoint"):
        walk_through(make_loop, SCENARIO)
