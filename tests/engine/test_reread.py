"""How much is read twice: tokens prefilled over tokens that stood in no earlier sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cache.planner import longest_common_token_prefix
from model.text.chat import RenderedPrompt
from server.engine.loop import EngineLoop
from tests.fakes.driver import Driver, Outcome, chat_prompt

MakeLoop = Callable[..., EngineLoop]
Message = tuple[str, list[int]]
Shape = Iterator[tuple[str, list[Message]]]

ROLES = {"system": 3, "user": 4, "assistant": 5}
N_WORDS = 200


def words(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(10, 250, N_WORDS).tolist()


def prompt_of(messages: list[Message]) -> RenderedPrompt:
    rendered = [[1, ROLES[role], *text, 2] for role, text in messages]
    return chat_prompt(rendered, roles=[role for role, _ in messages], header=[1, 5, 6])


def opened(seed: int) -> list[Message]:
    return [("system", words(seed)), ("user", words(seed + 1))]


def six_appended_turns() -> Shape:
    messages = opened(0)
    for turn in range(6):
        yield "a", messages
        messages = [*messages, ("assistant", words(100 + turn)[:30]), ("user", words(200 + turn))]


def regenerate() -> Shape:
    messages = [*opened(0), ("assistant", words(7)[:30]), ("user", words(8))]
    yield "a", messages[:2]
    yield "a", messages
    yield "a", messages


def edit_of_the_last_user_message() -> Shape:
    messages = [*opened(0), ("assistant", words(7)[:30])]
    yield "a", messages[:2]
    yield "a", [*messages, ("user", words(8))]
    yield "a", [*messages, ("user", words(9))]


def edit_of_an_early_user_message() -> Shape:
    messages = opened(0)
    for turn in range(4):
        yield "a", messages
        messages = [*messages, ("assistant", words(100 + turn)[:30]), ("user", words(200 + turn))]
    messages[3] = ("user", words(300))
    yield "a", messages


def exact_repeat() -> Shape:
    yield "a", opened(0)
    yield "a", opened(0)
    yield "a", [*opened(0), ("assistant", words(7)[:30]), ("user", words(8))]


def two_interleaved_sessions() -> Shape:
    chats = {"a": opened(0), "b": opened(1000)}
    for turn in range(3):
        for session, messages in chats.items():
            yield session, messages
            seed = 10 * turn + len(session)
            messages += [("assistant", words(100 + seed)[:30]), ("user", words(200 + seed))]


SHAPES = [
    six_appended_turns,
    regenerate,
    edit_of_the_last_user_message,
    edit_of_an_early_user_message,
    exact_repeat,
    two_interleaved_sessions,
]


def warm_tokens(driver: Driver, shape: Shape) -> tuple[int, int]:
    """Tokens read and tokens new over a shape's requests; each session's first, cold one left out.

    A prompt that is nothing new still has one token to feed, so it counts as one.
    """
    seen: list[np.ndarray] = []
    opened_sessions: set[str] = set()
    n_read = n_new = 0
    for session, messages in shape:
        prompt = prompt_of(messages)
        shared = max((longest_common_token_prefix(prompt.ids, ids) for ids in seen), default=0)
        before = driver.loop.counters.n_prefilled
        outcome = driver.ask(prompt, session=session, max_tokens=5)
        if session in opened_sessions:
            n_read += driver.loop.counters.n_prefilled - before
            n_new += max(len(prompt.ids) - shared, 1)
        opened_sessions.add(session)
        seen.append(_fed(prompt, outcome))
    return n_read, n_new


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_little_is_read_twice_in_every_shape(make_loop: MakeLoop, shape: Callable[[], Shape]) -> None:
    n_read, n_new = warm_tokens(Driver(make_loop(stop_ids=frozenset())), shape())
    assert n_read <= 1.10 * n_new + 2  # + 2: a prompt's last tokens are fed again when it is repeated


def test_next_to_nothing_is_read_twice_over_all_shapes(make_loop: MakeLoop) -> None:
    totals = [warm_tokens(Driver(make_loop(stop_ids=frozenset())), shape()) for shape in SHAPES]
    assert sum(read for read, _ in totals) <= 1.03 * sum(new for _, new in totals)


def _fed(prompt: RenderedPrompt, outcome: Outcome) -> np.ndarray:
    return np.concatenate([prompt.ids, np.array(outcome.token_ids[0], dtype=np.uint32)])
