"""Replies whose text is forced, read by the real engine: what is delivered, and why a reply ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chatml import chat_with, tool
from driver import Driver, Outcome
from scripted import Joined, ids_of, xml_call
from scripted_model import ScriptedForward, script

from model.forward import Forward
from model.text.chat import RenderedPrompt
from model.text.tokenizer import TextTokenizer
from server.engine.loop import EngineLoop
from server.events import Finished, Progress, ReplyFormat

MakeLoop = Callable[..., EngineLoop]
Say = Callable[..., tuple[Outcome, Driver]]
TOOLS = (tool("f", a={"type": "string"}), tool("g"))
QUESTION = [{"role": "user", "content": "hi"}]
CALL, OTHER = xml_call("f", a="x"), xml_call("g")


def prompt_of(thinks: bool) -> RenderedPrompt:
    return chat_with().render(QUESTION, tools=TOOLS, template_kwargs={"enable_thinking": thinks})


@pytest.fixture
def say(make_loop: MakeLoop, demo_forward: Forward, tokenizer: TextTokenizer) -> Say:
    """``say(text, thinks=..., max_tokens=..., **reply format)``: the model writes ``text`` and ends."""
    end_id = tokenizer.controls["<|im_end|>"].id

    def run(text: str, *, thinks: bool = False, max_tokens: int = 500, **form: Any) -> tuple[Outcome, Driver]:
        prompt = prompt_of(thinks)
        forward = ScriptedForward(demo_forward, script(len(prompt.ids), ids_of(text), end_id))
        driver = Driver(make_loop(forward=forward, stop_ids=frozenset({end_id})))
        return driver.ask(prompt, max_tokens=max_tokens, reply=ReplyFormat(**form)), driver

    return run


def joined(outcome: Outcome) -> Joined:
    whole = Joined()
    for event in outcome.events:
        if isinstance(event, Progress):
            whole.add(event.deltas)
    return whole


def finish(outcome: Outcome) -> Finished:
    return outcome.finished[0]


def test_c10_a_reply_that_calls_ends_for_the_call(say: Say) -> None:
    outcome, _ = say(f"Let me see.\n\n{CALL}", tools=TOOLS)
    assert joined(outcome) == Joined(content="Let me see.", calls=[["f", '{"a": "x"}']])
    assert finish(outcome).reason == "tool_calls"


def test_c10_a_reply_that_does_not_call_just_stops(say: Say) -> None:
    outcome, _ = say("No need.", tools=TOOLS)
    assert joined(outcome) == Joined(content="No need.")
    assert finish(outcome).reason == "stop"


@pytest.mark.parametrize("before", ["", f"{OTHER}\n"])
def test_c10_a_call_cut_by_the_limit_ends_for_the_limit(say: Say, before: str) -> None:
    n_tokens = len(ids_of(f"{before}<tool_call>\n<function=f>\n<parameter=a>\nx"))
    outcome, _ = say(before + CALL, tools=TOOLS, max_tokens=n_tokens)
    assert joined(outcome).calls[-1] == ["f", '{"a": "x']
    assert finish(outcome).reason == "length"


def test_c05_c08_calls_in_a_row_are_told_apart(say: Say) -> None:
    outcome, _ = say(f"{OTHER}\n{OTHER}\n{CALL}", tools=TOOLS)
    assert joined(outcome).calls == [["g", "{}"], ["g", "{}"], ["f", '{"a": "x"}']]


def test_c06_without_tools_a_call_is_text(say: Say) -> None:
    outcome, _ = say(CALL)
    assert joined(outcome) == Joined(content=CALL)
    assert finish(outcome).reason == "stop"


def test_c04_a_call_at_the_end_of_an_open_thought_is_delivered(say: Say) -> None:
    outcome, _ = say(f"I should call.\n{CALL}", thinks=True, tools=TOOLS)
    assert joined(outcome) == Joined(reasoning="I should call.", calls=[["f", '{"a": "x"}']])
    assert finish(outcome).reason == "tool_calls"


def test_d01_a_thought_that_fills_the_limit_is_all_reasoning(say: Say) -> None:
    outcome, _ = say("Let me think about this for long", thinks=True, max_tokens=4)
    whole = joined(outcome)
    assert whole.reasoning
    assert not whole.content
    assert finish(outcome).reason == "length"
    assert finish(outcome).n_reasoning_tokens == finish(outcome).n_tokens == 4


def test_d07_reasoning_tokens_are_those_up_to_the_closing_tag(say: Say) -> None:
    outcome, _ = say("Hm.\n</think>\n\nYes.", thinks=True)
    assert joined(outcome) == Joined(reasoning="Hm.", content="Yes.")
    assert finish(outcome).n_reasoning_tokens == len(ids_of("Hm.\n</think>"))


@pytest.mark.parametrize("stops", [("own fox",), ("\nUser:", "own fox"), ("fox", "own fox")])
def test_e03_a_stop_string_ends_the_reply_and_the_memory_before_it(say: Say, stops: tuple[str, ...]) -> None:
    outcome, driver = say("own fox</think>The brown fox.", thinks=True, stops=stops)
    whole = joined(outcome)
    assert whole.reasoning == "own fox"
    assert whole.content == "The br"
    assert finish(outcome).reason == "stop"
    # What is remembered lies before the cut: asked again, the prompt and the kept text are all reused.
    kept = ids_of("own fox</think>The br")[:-1]
    again = driver.ask([*prompt_of(True).ids.tolist(), *kept, *ids_of(" and white")])
    assert again.report.shared_tokens <= len(prompt_of(True).ids) + len(kept)
    assert again.report.shared_tokens >= len(prompt_of(True).ids)


def test_e03_a_stop_string_inside_a_call_is_the_calls(say: Say) -> None:
    outcome, _ = say(CALL, tools=TOOLS, stops=("x", "\n"))
    assert joined(outcome).calls == [["f", '{"a": "x"}']]
    assert finish(outcome).reason == "tool_calls"
