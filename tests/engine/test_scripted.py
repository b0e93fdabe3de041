"""Replies whose text is forced, read by the real engine: what is delivered, and why a reply ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from model.forward import Forward
from model.sampling import SamplingParams
from model.text.chat import RenderedPrompt
from model.text.grammar.calls import call_grammar
from model.text.grammar.rules import json_schema
from model.text.tokenizer import TextTokenizer
from server.engine.loop import EngineLoop
from server.events import Finished, Progress, ReplyFormat
from tests.fakes.chatml import chat_with, tokenizer_with, tool
from tests.fakes.driver import GREEDY, Driver, Outcome
from tests.fakes.scripted import Joined, ids_of, xml_call
from tests.fakes.scripted_model import ScriptedForward, script

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

    def run(
        text: str,
        *,
        thinks: bool = False,
        max_tokens: int = 500,
        sampling: SamplingParams = GREEDY,
        top_logprobs: int | None = None,
        **form: Any,
    ) -> tuple[Outcome, Driver]:
        prompt = prompt_of(thinks)
        forward = ScriptedForward(demo_forward, script(len(prompt.ids), ids_of(text), end_id))
        driver = Driver(make_loop(forward=forward, stop_ids=frozenset({end_id})))
        outcome = driver.ask(
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            top_logprobs=top_logprobs,
            reply=ReplyFormat(**form),
        )
        return outcome, driver

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


def test_e03_a_reply_tells_which_stop_string_ended_it(say: Say) -> None:
    outcome, _ = say("One. Two. Three.", stops=("Two", "Three"))
    assert joined(outcome) == Joined(content="One. ")
    assert (finish(outcome).reason, finish(outcome).stop) == ("stop", "Two")
    assert finish(say("One.", stops=("Two",))[0]).stop is None


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
def test_e03_a_stop_string_ends_the_reply_and_the_memory_before_it(
    say: Say, tokenizer: TextTokenizer, stops: tuple[str, ...]
) -> None:
    outcome, driver = say("own fox</think>The brown fox.", thinks=True, stops=stops)
    whole = joined(outcome)
    assert whole.reasoning == "own fox"
    assert whole.content == "The br"
    assert finish(outcome).reason == "stop"
    # What is remembered are the tokens that lie wholly before the cut.
    written, n_prompt = ids_of("own fox</think>The brown fox."), len(prompt_of(True).ids)
    (entry,) = driver.loop.store._shelf.entries()
    n_kept = len(entry) - n_prompt
    assert entry.ids.view[n_prompt:].tolist() == written[:n_kept]
    assert "own fox</think>The br".startswith(tokenizer.decode(np.array(written[:n_kept], np.uint32)))
    next_one = tokenizer.decode(np.array(written[: n_kept + 1], np.uint32))
    assert not "own fox</think>The br".startswith(next_one)
    # Asked again, the prompt and the kept text are all reused.
    again = driver.ask([*entry.ids.view.tolist(), *ids_of(" and white")])
    assert again.report.mode == "ExactAppend"


def test_e03_a_stop_string_inside_a_call_is_the_calls(say: Say) -> None:
    outcome, _ = say(CALL, tools=TOOLS, stops=("x", "\n"))
    assert joined(outcome).calls == [["f", '{"a": "x"}']]
    assert finish(outcome).reason == "tool_calls"


ONE = json_schema({"const": 1})


@pytest.mark.parametrize("thought", ["", "Hm.", "Hm.\n"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d05_a_thought_that_would_end_the_reply_is_closed_and_the_grammar_follows(
    say: Say, thought: str, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3)
    outcome, _ = say(thought, thinks=True, sampling=sampling, grammar=ONE)
    assert joined(outcome) == Joined(reasoning=thought.strip(), content="1")
    assert finish(outcome).reason == "stop"
    *reply, end_id = finish(outcome).token_ids
    assert reply == [*ids_of(thought), *ids_of("\n</think>\n\n"), *ids_of("1")]
    assert end_id in tokenizer_with().eos_ids
    assert finish(outcome).n_reasoning_tokens == len(ids_of(thought)) + len(ids_of("\n</think>"))


def test_d05_a_call_in_a_thought_that_would_end_the_reply_is_thought_where_one_must_follow(say: Say) -> None:
    grammar = call_grammar([tool("g")], tokenizer_with().controls)
    outcome, _ = say(f"So: {CALL}", thinks=True, tools=TOOLS, grammar=grammar, max_tokens=200)
    assert joined(outcome).reasoning == f"So: {CALL}"
    assert [name for name, _ in joined(outcome).calls][:1] == ["g"]


def test_f06_only_what_follows_a_closed_thought_has_log_probabilities(say: Say) -> None:
    outcome, _ = say("Hm.", thinks=True, grammar=ONE, top_logprobs=2)
    told = [told for event in outcome.events if isinstance(event, Progress) for told in event.logprobs]
    assert [entry.token_id for entry in told] == ids_of("1")
    # The model's own view: it wanted to end, the grammar made it write.
    assert told[0].alternatives[0][0] == tokenizer_with().controls["<|im_end|>"].id
    assert told[0].logprob < told[0].alternatives[0][1] - 50


def test_a_seeded_reply_under_a_grammar_does_not_depend_on_company(
    make_loop: MakeLoop, demo_forward: Forward
) -> None:
    sampling = SamplingParams(temperature=6.0, seed=5)
    prompt = prompt_of(True)
    end_ids = frozenset(tokenizer_with().eos_ids)
    # The end is made likely, so that thoughts end early and at different places.
    sampling = replace(sampling, logit_bias=tuple((end_id, 24.0) for end_id in sorted(end_ids)))

    def ask(driver: Driver, session: str) -> Outcome:
        form = ReplyFormat(grammar=json_schema({"enum": [11, 222]}))
        return driver.submit(
            prompt, session=session, sampling=sampling, n_replies=3, max_tokens=60, reply=form
        )

    drivers = [Driver(make_loop(forward=demo_forward, stop_ids=end_ids)) for _ in range(2)]
    alone = ask(drivers[0], "a")
    among = [drivers[1].submit(prompt, session=f"s{i}", max_tokens=9 + i) for i in range(2)]
    among.append(ask(drivers[1], "a"))
    for driver in drivers:
        driver.run()
    assert among[-1].token_ids == alone.token_ids
    assert all(alone.text(index).endswith(("11", "222")) for index in range(3))
    assert len({alone.token_ids[index] for index in range(3)}) > 1


def test_every_token_is_told_though_its_text_still_waits(say: Say) -> None:
    outcome, _ = say(f"Hm.\n</think>\n\nSo: {CALL}", thinks=True, tools=TOOLS)
    told = [event.n_tokens for event in outcome.events if isinstance(event, Progress)]
    assert told == sorted(set(told))
    assert told[-1] == finish(outcome).n_tokens
    steps = [after - before for before, after in pairwise([0, *told])]
    assert sum(n - 1 for n in steps) == finish(outcome).n_accepted


def test_t5_with_thinking_off_a_tag_that_is_written_is_text(say: Say) -> None:
    outcome, _ = say("<think> opens a thought.", thinks=False)
    assert joined(outcome) == Joined(content="<think> opens a thought.")


def test_t7_structured_content_without_a_thought_begins_with_itself(say: Say) -> None:
    outcome, _ = say('\n\n{"a": 1}', thinks=False, grammar=json_schema({"type": "object"}))
    assert joined(outcome) == Joined(content='{"a": 1}')


def test_t4_a_call_in_a_thought_that_the_limit_cuts_is_thought(say: Say) -> None:
    text = f"Hm.\n{CALL}"
    outcome, _ = say(text, thinks=True, tools=TOOLS, max_tokens=len(ids_of(text)))
    assert joined(outcome) == Joined(reasoning=text)
    assert finish(outcome).reason == "length"


def test_t4_a_call_in_a_thought_that_the_budget_closes_is_thought(say: Say) -> None:
    text = f"Hm.\n{CALL}"
    outcome, _ = say(text, thinks=True, tools=TOOLS, max_thought_tokens=len(ids_of(text)))
    assert joined(outcome).reasoning == text
    assert not joined(outcome).calls


def test_t2_a_call_that_cannot_be_understood_ends_as_text_does(say: Say) -> None:
    text = CALL.replace("</function>", "<parameter=a>\ny\n</parameter>\n</function>")
    outcome, _ = say(text, tools=TOOLS)
    assert finish(outcome).reason == "stop"
    assert joined(outcome).calls == [["f", '{"a": "x"']]
