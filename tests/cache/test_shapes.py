"""What conversations of every shape read twice: counted over integer states, before any model runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from cache.planner import SlotKey
from tests.fakes.cache_kit import DEMO, make_store
from tests.fakes.fake_chat import SYSTEM, TOOL, USER, Client, Message, Tally

N_THOUGHT = 150

Keys = Callable[[str], SlotKey]
Shape = Callable[[Client, Keys, int], None]


def with_keys(key: str) -> SlotKey:
    return SlotKey.for_session(None, key)


def without_keys(_: str) -> SlotKey:
    return SlotKey.for_session(None, None)


def turns(client: Client, slot: SlotKey, messages: list[Message], n: int, n_words: int) -> None:
    for _ in range(n):
        messages.append(Message(USER, client.words(n_words)))
        messages.append(client.ask(slot, messages, n_thought=N_THOUGHT))


def opening(client: Client, n_words: int) -> list[Message]:
    return [Message(SYSTEM, client.words(n_words))]


def edited(client: Client, message: Message, share_kept: float = 0.0) -> Message:
    n = int(len(message.content) * share_kept)
    words = (*message.content[:n], *client.words(len(message.content) - n))
    return Message(message.role, words, message.thought)


def append(client: Client, keys: Keys, n_words: int) -> None:
    turns(client, keys("a"), opening(client, n_words), 6, n_words)


def append_without_thinking(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for _ in range(6):
        messages.append(Message(USER, client.words(n_words)))
        messages.append(client.ask(keys("a"), messages, thinking=False))


def regenerate(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    turns(client, keys("a"), messages, 3, n_words)
    for _ in range(2):
        messages[-1] = client.ask(keys("a"), messages[:-1], n_thought=N_THOUGHT)
    turns(client, keys("a"), messages, 2, n_words)


def edit_last(client: Client, keys: Keys, n_words: int, share_kept: float = 0.0) -> None:
    messages = opening(client, n_words)
    turns(client, keys("a"), messages, 4, n_words)
    messages[-2:] = [edited(client, messages[-2], share_kept)]
    messages.append(client.ask(keys("a"), messages, n_thought=N_THOUGHT))
    turns(client, keys("a"), messages, 2, n_words)


def edit_last_midway(client: Client, keys: Keys, n_words: int) -> None:
    edit_last(client, keys, n_words, 0.5)


def edit_early(client: Client, keys: Keys, n_words: int, share_kept: float = 0.0) -> None:
    messages = opening(client, n_words)
    turns(client, keys("a"), messages, 5, n_words)
    messages[3:] = [edited(client, messages[3], share_kept)]
    messages.append(client.ask(keys("a"), messages, n_thought=N_THOUGHT))
    turns(client, keys("a"), messages, 2, n_words)


def edit_early_midway(client: Client, keys: Keys, n_words: int) -> None:
    edit_early(client, keys, n_words, 0.5)


def tool_loops(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for _ in range(2):
        messages.append(Message(USER, client.words(n_words)))
        for _ in range(4):
            call = client.ask(keys("a"), messages, n_thought=N_THOUGHT)
            messages += [replace(call, thought=()), Message(TOOL, client.words(n_words // 3))]
        messages.append(client.ask(keys("a"), messages, n_thought=N_THOUGHT))
    turns(client, keys("a"), messages, 1, n_words)


def tool_loops_with_thoughts_echoed(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for _ in range(2):
        messages.append(Message(USER, client.words(n_words)))
        for _ in range(4):
            messages.append(client.ask(keys("a"), messages, n_thought=N_THOUGHT))
            messages.append(Message(TOOL, client.words(n_words // 3)))
        messages.append(client.ask(keys("a"), messages, n_thought=N_THOUGHT))
    turns(client, keys("a"), messages, 1, n_words)


def twelve_interleaved(client: Client, keys: Keys, n_words: int) -> None:
    system = opening(client, n_words)
    chats = [list(system) for _ in range(12)]
    for _ in range(3):
        for i, messages in enumerate(chats):
            turns(client, keys(f"chat {i}"), messages, 1, n_words)


def side_requests(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for _ in range(4):
        turns(client, keys("a"), messages, 1, n_words)
        client.ask(keys("a"), [Message(USER, client.words(n_words))], n_reply=10, thinking=False)


def titles_asked_within_the_chat(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for _ in range(4):
        turns(client, keys("a"), messages, 1, n_words)
        title = Message(USER, client.words(30))
        client.ask(keys("a"), [*messages, title], n_reply=10, thinking=False)


def new_chats_over_one_system_prompt(client: Client, keys: Keys, n_words: int) -> None:
    system = opening(client, n_words)
    for i in range(5):
        turns(client, keys(f"chat {i}"), list(system), 2, n_words)


def exact_repeats(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for _ in range(3):
        messages.append(Message(USER, client.words(n_words)))
        for _ in range(3):
            reply = client.ask(keys("a"), messages, n_thought=N_THOUGHT)
        messages.append(reply)


def clock_at_the_end_of_the_system_prompt(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    text = messages[0].content
    for _ in range(6):
        messages[0] = Message(SYSTEM, (*text, *client.words(4)))
        turns(client, keys("a"), messages, 1, n_words)


def cancels_and_retries(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for _ in range(4):
        messages.append(Message(USER, client.words(n_words)))
        client.ask(keys("a"), messages, cancel_after=n_words // 2)
        messages.append(client.ask(keys("a"), messages, n_thought=N_THOUGHT))


def toggled_thinking(client: Client, keys: Keys, n_words: int) -> None:
    messages = opening(client, n_words)
    for i in range(6):
        messages.append(Message(USER, client.words(n_words)))
        messages.append(client.ask(keys("a"), messages, n_thought=N_THOUGHT, thinking=i % 2 == 0))


SHAPES: tuple[Shape, ...] = (
    append,
    append_without_thinking,
    regenerate,
    edit_last,
    edit_last_midway,
    edit_early,
    edit_early_midway,
    tool_loops,
    tool_loops_with_thoughts_echoed,
    twelve_interleaved,
    side_requests,
    titles_asked_within_the_chat,
    new_chats_over_one_system_prompt,
    exact_repeats,
    clock_at_the_end_of_the_system_prompt,
    cancels_and_retries,
    toggled_thinking,
)


@cache
def reread(shape: Shape, keys: Keys, n_words: int) -> Tally:
    """Plays ``shape`` on a fresh store; the first, cold request is not counted."""
    client = Client(make_store(geometry=DEMO), leaves_first_out=True)
    shape(client, keys, n_words)
    client.store.check()
    return client.tally


@pytest.mark.parametrize("keys", [with_keys, without_keys])
@pytest.mark.parametrize("n_words", [800, 8000])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_reads_more_than_a_tenth_twice(shape: Shape, n_words: int, keys: Keys) -> None:
    assert reread(shape, keys, n_words).ratio <= 1.10


@pytest.mark.parametrize("keys", [with_keys, without_keys])
@pytest.mark.parametrize("n_words", [800, 8000])
def test_over_all_shapes_three_percent_is_read_twice_at_most(n_words: int, keys: Keys) -> None:
    tallies = [reread(shape, keys, n_words) for shape in SHAPES]
    assert sum(t.n_fed for t in tallies) <= 1.03 * sum(t.n_new for t in tallies)
