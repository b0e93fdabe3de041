"""Cases from the field, over HTTP with the demo model: whatever is reused, the reply is a cold server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.settings import Settings
from tests.fakes.live_server import Live, live_demo

pytestmark = pytest.mark.slow

Message = dict[str, Any]

SYSTEM = "You are a helpful assistant. " + "Be polite and answer in one sentence. " * 30
SECRET = "My code word is walrus."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def system(content: str = SYSTEM) -> Message:
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def said(reply: dict[str, Any], *, with_ids: bool = True) -> Message:
    """The reply's message as a client sends it back; calls have ids that are never the same."""
    message: Message = reply["choices"][0]["message"]
    if with_ids or "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [call["function"] for call in message["tool_calls"]]}


def logprobs_of(reply: dict[str, Any]) -> list[float]:
    told = reply["choices"][0]["logprobs"] or {"content": []}
    return [entry["logprob"] for entry in told["content"]]


class Pair:
    """One server that remembers and one that is made to forget before every question."""

    def __init__(self, warm: Live, cold: Live) -> None:
        self.warm = warm
        self._cold = cold

    def ask(self, messages: list[Message], **fields: Any) -> dict[str, Any]:
        """The warm server's reply, which must be the cold one's too."""
        body = {"messages": messages, "temperature": 0, "max_tokens": 24, **fields}
        forget(self._cold)
        warm, cold = (server.chat(**body).json() for server in (self.warm, self._cold))
        assert cold["crossturn"]["mode"] == "FullRefill"
        assert said(warm, with_ids=False) == said(cold, with_ids=False)
        for ours, theirs in zip(logprobs_of(warm), logprobs_of(cold), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3)
        return dict(warm)


def forget(server: Live) -> None:
    """Delete every slot."""
    for slot in server.http.get("/v1/slots").json()["data"]:
        server.http.delete(f"/v1/slots/{slot['slot']}")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with live_demo() as warm, live_demo(Settings(idle_prefill=False)) as cold:
        yield Pair(warm, cold)


@pytest.fixture(autouse=True)
def _begin_with_nothing(pair: Pair) -> None:
    forget(pair.warm)


@pytest.mark.parametrize("thinking", [True, False])
def test_a01_b08_reuse_moves_forward_with_every_turn(pair: Pair, thinking: bool) -> None:
    messages = [system()]
    reused = []
    for question in ("Hello!", "What is 12 plus 5?", "Spell the word lamp.", "Thank you.", "Bye."):
        messages.append(user(question))
        reply = pair.ask(messages, enable_thinking=thinking)
        reused.append(reply["crossturn"]["reused_tokens"])
        messages.append({"role": "assistant", "content": said(reply)["content"] or "Well."})
    assert reused == sorted(set(reused))


def test_a02_a_regenerate_and_an_edit_replay_from_a_checkpoint(pair: Pair) -> None:
    history = [system(), user("Hello!"), {"role": "assistant", "content": "Hello!"}]
    first = pair.ask([*history, user("What is 12 plus 5?")])
    for messages in ([*history, user("What is 12 plus 5?")], [*history, user("What is 3 plus 4?")]):
        again = pair.ask(messages)
        assert again["crossturn"]["mode"] == "ReplayFromCheckpoint"
        assert again["crossturn"]["prefilled_tokens"] < 40
    assert first["crossturn"]["prefilled_tokens"] > 200


def test_a06_toggled_thinking_replays_the_header_only(pair: Pair) -> None:
    messages = [system(), user("What is 12 plus 5?")]
    pair.ask(messages, enable_thinking=True)
    for thinking in (False, True, False):
        reply = pair.ask(messages, enable_thinking=thinking)
        assert reply["crossturn"]["prefilled_tokens"] < 16


@pytest.mark.parametrize("change", ["stripped", "trimmed", "reordered"])
def test_a08_b08_history_rendered_otherwise_is_reused_up_to_the_change(pair: Pair, change: str) -> None:
    """A thought that is left out, whitespace that is cut off, arguments in another order."""
    call = {"name": "get_weather", "arguments": '{"city": "Rome", "unit": "C"}'}
    history: list[Message] = [
        system(),
        user("What is the weather in Rome?"),
        {"role": "assistant", "reasoning_content": "I ask the tool.", "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "Sunny, 25 degrees.  \n"},
    ]
    first = pair.ask(history, tools=[TOOL], enable_thinking=True)
    if change == "stripped":
        del history[2]["reasoning_content"]
    elif change == "trimmed":
        history[3]["content"] = history[3]["content"].strip()
    elif change == "reordered":
        call["arguments"] = '{"unit":"C","city":"Rome"}'
    again = pair.ask(history, tools=[TOOL], enable_thinking=True)
    assert again["crossturn"]["mode"] == "ReplayFromCheckpoint"
    n_read, n_first = again["crossturn"]["prefilled_tokens"], first["crossturn"]["prompt_tokens"]
    # What lies before the first message that changed, the system prompt and the question, is not read again.
    assert n_read < 90 < 300 < n_first


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_a10_a_changed_system_prompt_is_never_spliced(pair: Pair, place: str) -> None:
    half = len(SYSTEM) // 2
    changed = {
        "start": f"It is 10:45. {SYSTEM}",
        "middle": f"{SYSTEM[:half]} It is 10:45. {SYSTEM[half:]}",
        "end": f"{SYSTEM} It is 10:45.",
    }[place]
    pair.ask([system(changed), user("Hello!")])
    later = pair.ask([system(changed.replace("10:45", "11:02")), user("Hello!")])
    assert "message 0 (system)" in later["crossturn"]["reason"]
    third = pair.ask([system(changed.replace("10:45", "12:30")), user("Hello!")])
    if place == "end":
        assert third["crossturn"]["reused_tokens"] > 200


def test_b01_a_new_chat_with_the_same_tools_still_calls_them(pair: Pair) -> None:
    options = {"tools": [TOOL], "max_tokens": 100}
    pair.ask([system(), user("Get the weather with city Rome.")], **options)
    second = pair.ask([system(), user("Get the weather with city Oslo.")], **options)
    assert second["crossturn"]["reused_tokens"] > 200
    assert second["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = said(second)["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


def test_b03_nothing_of_another_chat_is_visible(pair: Pair) -> None:
    pair.ask([system(), user(SECRET)], prompt_cache_key="one")
    other = pair.ask([system(), user("What is my code word?")], prompt_cache_key="two")
    assert other["crossturn"]["reused_tokens"] > 0
    assert "walrus" not in json.dumps(said(other))
    own = pair.ask(
        [system(), user(SECRET), {"role": "assistant", "content": "Noted."}, user("What is my code word?")],
        prompt_cache_key="one",
        enable_thinking=False,
    )
    assert own["crossturn"]["reused_tokens"] > 200


def test_b06_log_probabilities_are_the_same_warm_and_cold(pair: Pair) -> None:
    for number in range(6):
        # Pair compares the choices, log probabilities included.
        reply = pair.ask(
            [system(), user(f"What is {number} plus 9?")],
            logprobs=True,
            top_logprobs=3,
            enable_thinking=False,
        )
    assert reply["crossturn"]["reused_tokens"] > 200


@pytest.mark.parametrize("n_lines", [0, 1, 3, 12])
def test_b07_e05_a_cancelled_request_leaves_nothing_wrong_behind(pair: Pair, n_lines: int) -> None:
    messages = [system(SYSTEM * 2), user("Count from 1 to 40.")]
    body = {"messages": messages, "temperature": 0, "max_tokens": 400, "stream": True}
    with pair.warm.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(n_lines):
            next(lines)
    retried = pair.ask([*messages, {"role": "assistant", "content": "1, 2."}, user("Go on.")])
    if n_lines >= 3:  # the first token was there, so the prompt had been read
        assert retried["crossturn"]["reused_tokens"] > 400


@pytest.mark.parametrize("change", ["image", "text"])
def test_b10_an_image_is_refused_in_a_warm_session_which_goes_on(pair: Pair, change: str) -> None:
    history = [system(), user("Hello!"), {"role": "assistant", "content": "Hello!"}]
    pair.ask([*history, user("What is 1 plus 2?")])
    parts: dict[str, Any] = {
        "image": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        "text": {"type": "text", "text": "What is 1 plus 2?"},
    }
    question = {"role": "user", "content": [parts[change]]}
    if change == "image":
        assert pair.warm.refusal(messages=[*history, question])["param"] == "messages[3].content[0]"
    else:
        assert pair.ask([*history, question])["crossturn"]["reused_tokens"] > 200


def test_g02_the_server_recovers_from_conversations_beyond_its_memory() -> None:
    with live_demo(memory_budget=12 * 2**20) as small, live_demo() as large:
        for n_words in (100, 600, 2000):
            messages = [user("word " * n_words)]
            bodies = [
                server.chat(messages=messages, temperature=0, max_tokens=4).json()
                for server in (small, large)
            ]
            assert bodies[0]["choices"] == bodies[1]["choices"]
            slots = small.http.get("/v1/slots").json()
            assert slots["bytes"] <= slots["budget_bytes"]
        assert small.chat(messages=[user("Hello!")], max_tokens=4).status_code == 200
