"""Drafts: a reply is the same with and without, whatever is guessed; only what was committed is
remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from model.forward import Forward
from model.sampling import SamplingParams
from model.text.grammar.rules import json_schema
from model.text.tokenizer import TextTokenizer
from server.engine.admission import LoopOptions
from server.engine.drafting import SIZES, Acceptance, Costs, Drafting, MeasuredDepth, Speculation
from server.engine.lookup import Lookup
from server.engine.loop import EngineLoop
from server.events import Progress, ReplyFormat, TokenLogprob
from tests.fakes.drafters import Always, Oracle
from tests.fakes.driver import GREEDY, Driver, Outcome, chat_prompt, plain_prompt
from tests.fakes.scripted import ids_of
from tests.fakes.scripted_model import ScriptedForward, script

MakeLoop = Callable[..., EngineLoop]
PROMPT = [10 + i * i % 90 for i in range(150)]
OFF = LoopOptions(prefill_tokens=128, shared_prefill_tokens=64, drafts=False, checks_store=True)
ON = LoopOptions(prefill_tokens=128, shared_prefill_tokens=64, checks_store=True)
SEEDED = SamplingParams(temperature=0.9, seed=7)
LOOKUP = Drafting(depth=Always((8,)))  # where the measured one would depend on the machine


def guessing(reply: Sequence[int], wrong_at: Sequence[int], sizes: Sequence[int] = (4,)) -> Drafting:
    return Drafting(lambda *_: Oracle(reply, wrong_at), Always(sizes))


def plain(make_loop: MakeLoop, prompt: list[int] = PROMPT, **options: object) -> Outcome:
    loop = make_loop(options=OFF, stop_ids=options.pop("stop_ids", frozenset()))
    return Driver(loop).ask(prompt, **options)


def logprobs(outcome: Outcome) -> list[TokenLogprob]:
    return [told for event in outcome.events if isinstance(event, Progress) for told in event.logprobs]


@pytest.mark.parametrize("wrong_at", [(99,), (0,), (1,), (2,), (0, 1, 2, 3, 99), (99, 0)])
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SEEDED,
        SamplingParams(temperature=1.5, top_k=20, top_p=0.9, min_p=0.01, seed=3),
        SamplingParams(
            temperature=0.8, seed=2, frequency_penalty=0.7, presence_penalty=0.3, repetition_penalty=1.2
        ),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, logit_bias=((20, 3.0), (30, -5.0))),
    ],
    ids=["greedy", "seeded", "top", "penalties", "greedy penalties"],
)
def test_a_reply_is_the_same_however_wrong_its_drafts_are(
    make_loop: MakeLoop, sampling: SamplingParams, wrong_at: Sequence[int]
) -> None:
    without = plain(make_loop, sampling=sampling, max_tokens=40)
    drafting = guessing(without.token_ids[0], wrong_at, (4, 6, 2))
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=drafting))
    outcome = driver.ask(PROMPT, sampling=sampling, max_tokens=40)
    assert outcome.token_ids == without.token_ids
    assert outcome.text() == without.text()
    end = outcome.finished[0]
    assert (end.n_drafted > end.n_accepted) == (wrong_at != (99,))
    assert (end.n_accepted == 0) == (wrong_at == (0,))
    assert driver.loop.counters.n_generated == 40
    (entry,) = driver.loop.store._shelf.entries()
    assert entry.ids.view.tolist() == [*PROMPT, *without.token_ids[0]]
    follow = [*PROMPT, *without.token_ids[0], 5, 6]
    assert driver.ask(follow).token_ids == plain(make_loop, follow).token_ids


def test_replies_of_different_luck_are_written_together(make_loop: MakeLoop) -> None:
    prompts = [[*PROMPT, 100 + i] for i in range(4)]
    alone = [plain(make_loop, prompt, sampling=SEEDED, max_tokens=30 + i) for i, prompt in enumerate(prompts)]
    replies = {prompt[-1]: outcome.token_ids[0] for prompt, outcome in zip(prompts, alone, strict=True)}

    def new_drafter(_: Sequence[NDArray[np.uint32]], text: NDArray[np.uint32]) -> Oracle:
        number = int(text[-1])
        return Oracle(replies[number], (number - 100, 99))

    depth = Always((4, 1, 8))
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=Drafting(new_drafter, depth)))
    together = [
        driver.submit(prompt, session=f"s{i}", sampling=SEEDED, max_tokens=30 + i)
        for i, prompt in enumerate(prompts)
    ]
    driver.run()
    assert [outcome.token_ids for outcome in together] == [outcome.token_ids for outcome in alone]
    assert {n for n, _ in depth.fed} >= {1, 2, 3, 4}
    assert {size for _, size in depth.fed} >= {1, 4, 8}


def test_siblings_are_the_same_with_drafts(make_loop: MakeLoop) -> None:
    without = plain(make_loop, sampling=SEEDED, max_tokens=20, n_replies=3)
    drafting = guessing(without.token_ids[1], (99, 1))
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=drafting))
    outcome = driver.ask(PROMPT, sampling=SEEDED, max_tokens=20, n_replies=3)
    assert outcome.token_ids == without.token_ids
    assert outcome.finished[1].n_accepted > 0


@pytest.mark.parametrize("at", [0, 5, 6, 7, 8, 9])
def test_a_stop_token_inside_a_draft_ends_the_reply_and_what_is_remembered(
    make_loop: MakeLoop, at: int
) -> None:
    reply = plain(make_loop, sampling=SEEDED, max_tokens=20).token_ids[0]
    end = frozenset({reply[at]})
    without = plain(make_loop, sampling=SEEDED, max_tokens=20, stop_ids=end)
    driver = Driver(make_loop(options=ON, stop_ids=end, drafting=guessing(reply, (99,), (8,))))
    outcome = driver.ask(PROMPT, sampling=SEEDED, max_tokens=20)
    assert outcome.finished == without.finished
    (entry,) = driver.loop.store._shelf.entries()
    assert entry.ids.view.tolist() == [*PROMPT, *without.token_ids[0]]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 9])
def test_a_draft_goes_no_further_than_the_reply_may(make_loop: MakeLoop, max_tokens: int) -> None:
    reply = plain(make_loop, sampling=SEEDED, max_tokens=20).token_ids[0]
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=guessing(reply, (99,), (8,))))
    outcome = driver.ask(PROMPT, sampling=SEEDED, max_tokens=max_tokens)
    assert outcome.token_ids[0] == reply[:max_tokens]
    (entry,) = driver.loop.store._shelf.entries()
    assert entry.ids.view.tolist() == [*PROMPT, *reply[:max_tokens]]


@pytest.mark.parametrize("at", [4, 11, 20])
def test_a_stop_string_inside_a_draft_cuts_as_without(make_loop: MakeLoop, at: int) -> None:
    whole = plain(make_loop, sampling=SEEDED, max_tokens=60)
    stop = whole.text()[at : at + 4]
    form = ReplyFormat(stops=(stop,))
    without = plain(make_loop, sampling=SEEDED, max_tokens=60, reply=form)
    driver = Driver(
        make_loop(options=ON, stop_ids=frozenset(), drafting=guessing(whole.token_ids[0], (99,), (8,)))
    )
    outcome = driver.ask(PROMPT, sampling=SEEDED, max_tokens=60, reply=form)
    assert (outcome.finished, outcome.text()) == (without.finished, without.text())
    (entry,) = driver.loop.store._shelf.entries()
    fed = entry.ids.view.tolist()
    assert fed == [*PROMPT, *whole.token_ids[0]][: len(fed)]
    follow = [*fed, 5, 6]
    assert driver.ask(follow).token_ids == plain(make_loop, follow).token_ids


def test_log_probabilities_are_those_of_each_place(make_loop: MakeLoop) -> None:
    without = plain(make_loop, sampling=SEEDED, max_tokens=30, top_logprobs=3)
    drafting = guessing(without.token_ids[0], (99, 1), (6,))
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=drafting))
    outcome = driver.ask(PROMPT, sampling=SEEDED, max_tokens=30, top_logprobs=3)
    assert len(logprobs(outcome)) == len(logprobs(without)) > 10
    for one, other in zip(logprobs(outcome), logprobs(without), strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [i for i, _ in one.alternatives] == [i for i, _ in other.alternatives]


@pytest.mark.parametrize("wrong_at", [(99,), (0, 2, 99), (1,)])
@pytest.mark.parametrize("thinks", [True, False])
def test_under_a_grammar_a_reply_is_the_same_with_drafts(
    make_loop: MakeLoop, demo_forward: Forward, thinks: bool, wrong_at: Sequence[int]
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 8}, "b": {"type": "integer"}},
    }
    prompt = ids_of("Say it in JSON:")
    form = ReplyFormat(grammar=json_schema({**schema, "required": ["a", "b"]}), max_thought_tokens=6)

    def ask(options: LoopOptions, drafting: Drafting | None = None) -> Outcome:
        loop = make_loop(forward=demo_forward, options=options, drafting=drafting)
        rendered = plain_prompt(prompt, opens_thought=thinks)
        return Driver(loop).ask(rendered, sampling=SEEDED, max_tokens=60, reply=form)

    without = ask(OFF)
    outcome = ask(ON, guessing(without.token_ids[0], wrong_at, (4, 8)))
    assert outcome.token_ids == without.token_ids
    assert outcome.text() == without.text()
    assert outcome.finished[0].n_accepted > 0


def test_a_draft_that_the_grammar_refuses_is_cut_there(make_loop: MakeLoop, demo_forward: Forward) -> None:
    form = ReplyFormat(grammar=json_schema({"const": "abcdefgh"}))
    drafting = guessing(ids_of('"abcXefgh"'), (99,), (16,))
    outcome = Driver(make_loop(forward=demo_forward, options=ON, drafting=drafting)).ask(
        ids_of("hi"), max_tokens=30, reply=form
    )
    assert outcome.text() == '"abcdefgh"'


def test_a_fault_in_guessing_costs_the_guesses_alone(make_loop: MakeLoop) -> None:
    class Broken(Oracle):
        def add(self, token: int) -> None:  # noqa: ARG002
            raise RuntimeError("planted")

    drafting = Drafting(lambda *_: Broken((), (0,)), Always())
    outcome = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=drafting)).ask(PROMPT, max_tokens=9)
    assert outcome.token_ids == plain(make_loop, max_tokens=9).token_ids


def test_a_cancel_between_rounds_keeps_what_is_committed(make_loop: MakeLoop) -> None:
    reply = plain(make_loop, max_tokens=60).token_ids[0]
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=guessing(reply, (2, 99), (6,))))
    outcome = driver.submit(PROMPT, max_tokens=60)
    while not any(isinstance(e, Progress) and e.n_tokens > 10 for e in outcome.events):
        driver.loop.step()
    driver.loop.cancel(outcome.id)
    driver.run()
    (entry,) = driver.loop.store._shelf.entries()
    fed = entry.ids.view.tolist()
    assert fed == [*PROMPT, *reply][: len(fed)]
    assert driver.ask([*fed, 7]).token_ids == plain(make_loop, [*fed, 7]).token_ids


# -- what is guessed ---------------------------------------------------------------------------------


def lookup(text: Sequence[int], *quotes: Sequence[int]) -> Lookup:
    *known, last = text
    found = Lookup([np.array(quote, np.uint32) for quote in quotes], np.array(known, np.uint32))
    found.add(last)
    return found


def test_what_followed_the_same_tokens_before_is_guessed() -> None:
    found = lookup([1, 2, 3, 4, 5, 6, 7, 9, 2, 3, 4])
    assert (found.n_matched, found.draft(3)) == (3, [5, 6, 7])
    found.add(5)
    assert (found.n_matched, found.draft(2)) == (4, [6, 7])
    found.add(1)
    assert (found.n_matched, found.draft(2)) == (0, [])


def test_the_newest_place_counts_and_a_quote_before_the_prompts() -> None:
    assert lookup([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3]).draft(1) == [5]
    assert lookup([1, 2, 3, 4, 0, 1, 2, 3], [1, 2, 3, 8]).draft(1) == [8]


def test_a_loop_is_guessed_for_as_long_as_is_wanted() -> None:
    assert lookup([5, 1, 2, 1, 2, 1, 2]).draft(5) == [1, 2, 1, 2, 1]


def test_nothing_is_guessed_across_the_end_of_a_text() -> None:
    assert lookup([9, 1, 2, 3], [1, 2, 3]).draft(4) == []
    assert lookup([1, 2, 3], [7, 1], [2, 3, 4]).n_matched == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_guess_stood_behind_the_same_tokens(seed: int) -> None:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 4, 400).tolist()
    found = lookup(ids[:50])
    for n in range(50, 400):
        matched, draft = found.n_matched, found.draft(3)
        assert (matched >= 3) == bool(draft)
        if matched:
            tail = ids[n - matched : n]
            places = [i for i in range(n - matched) if ids[i : i + matched] == tail]
            assert any(
                ids[i + matched : i + matched + len(draft)][: n - i - matched] == draft[: n - i - matched]
                for i in places
            )
        found.add(ids[n])


# -- how much is guessed -----------------------------------------------------------------------------


def test_a_place_that_is_never_right_is_soon_left_alone() -> None:
    acceptance = Acceptance()
    before = acceptance.rate(3)
    for _ in range(6):
        acceptance.note(3, 3, 0)
    assert acceptance.rate(3) < before / 2
    assert acceptance.rate(32) > 0.9, "long matches are another class"


def test_what_other_replies_have_shown_is_believed_until_one_shows_otherwise() -> None:
    general = Acceptance()
    for _ in range(20):
        Acceptance(general).note(3, 4, 0)
    fresh = Acceptance(general)
    assert fresh.rate(3) < 0.1
    for _ in range(5):
        fresh.note(3, 4, 4)
    assert fresh.rate(3) > 0.7


def depth_of(plain_s: float, extra_s: float) -> MeasuredDepth:
    depth = MeasuredDepth()
    for _ in range(30):
        for size in SIZES:
            depth.note(1, size, plain_s + extra_s * (size - 1))
    return depth


def speculation(n_matched: int) -> Speculation:
    return Speculation(Oracle((), (0,), n_matched=n_matched))


def test_the_depth_is_the_one_that_promises_most_and_none_is_an_ordinary_choice() -> None:
    sure, unsure = speculation(32), speculation(3)
    assert depth_of(1.0, 0.01).choose(1, [sure])[0] == 32
    assert depth_of(1.0, 0.9).choose(1, [unsure])[0] == 1
    assert 1 < depth_of(1.0, 0.2).choose(1, [unsure])[0] < depth_of(1.0, 0.2).choose(1, [sure])[0]
    assert depth_of(1.0, 1.2).choose(1, [sure])[0] == 1


def test_where_drafts_never_come_true_they_cost_less_than_two_in_a_hundred() -> None:
    depth, guess = depth_of(1.0, 0.3), speculation(3)
    seconds, n_tokens = 0.0, 0
    for _ in range(2000):
        size = depth.choose(1, [guess])[0] if depth.may_pay(1, [guess]) else 1
        seconds += 1.0 + 0.3 * (size - 1)
        n_tokens += 1
        if size > 1:
            guess.guess(size - 1)
            guess.note(size - 1, 0)
        else:
            guess.n_plain += 1
    assert seconds / n_tokens < 1.02


def test_a_wait_for_tokens_that_break_the_match_counts_as_what_it_costs() -> None:
    guess = speculation(3)
    waits_cheaply, waits_dearly = depth_of(1.0, 0.05), depth_of(1.0, 0.05)
    for depth, seconds in ((waits_cheaply, 1.0), (waits_dearly, 2.5)):
        for _ in range(30):
            depth.choose(1, [])
            depth.note(1, 1, seconds)
    assert waits_cheaply.may_pay(1, [guess])
    assert not waits_dearly.may_pay(1, [guess])
    assert waits_dearly.choose(1, [guess])[0] > 1, "once they are there, a draft that is left pays"
    assert waits_dearly.may_pay(1, [speculation(32)])


def test_a_reply_alone_does_not_slow_down_those_beside_it() -> None:
    depth = MeasuredDepth()
    for _ in range(30):
        for size in SIZES:
            depth.note(16, size, 1.0 + 0.5 * (size - 1))
    assert depth.choose(16, [speculation(32)])[0] == 1
    assert depth.choose(16, [speculation(32) for _ in range(16)])[0] > 1


def test_replies_that_stand_together_part_for_nothing_less_than_what_that_costs() -> None:
    depth = MeasuredDepth()

    def steps(n: int, seconds: float) -> None:
        for _ in range(n):
            depth.note(4, 1, seconds)

    sure, unsure = [speculation(32) for _ in range(4)], [speculation(8) for _ in range(4)]
    steps(100, 1.0)
    depth.note(4, 4, 1.3)
    depth.note(4, 32, 3.0)
    assert depth.choose(4, unsure)[0] > 1, "they stand apart already"
    steps(63, 1.2)
    steps(60, 1.0)
    assert depth.choose(4, unsure)[0] == 1, "a few tokens do not make up for sixty slower steps"
    assert depth.choose(4, sure)[0] > 1
    depth.note(4, 32, 3.0)
    assert depth.choose(4, unsure)[0] > 1
    steps(200, 1.0)
    assert depth.choose(4, unsure)[0] > 1, "where steps are no slower apart, nothing is lost"


def test_what_is_not_measured_is_estimated_from_what_is() -> None:
    costs = Costs()
    costs.note(1, 1, 1.0)
    costs.note(1, 4, 1.6)
    assert 1.6 < costs.ratio(1, 8) < 2.5
    assert 1.0 < costs.ratio(1, 2) < 1.6
    for _ in range(50):
        costs.note(1, 4, 1.2)
    costs.note(1, 4, 100.0)
    assert costs.ratio(1, 4) < 1.5, "something else held that round up"


def test_large_drafts_are_tried_only_once_smaller_ones_were_measured() -> None:
    depth, sure = MeasuredDepth(), speculation(32)
    sizes = []
    for _ in range(4):
        depth.note(1, 1, 1.0)
        sizes.append(depth.choose(1, [sure])[0])
        depth.note(1, sizes[-1], 1.0 + 0.01 * sizes[-1])
    assert sizes == [4, 8, 16, 32]
    depth = MeasuredDepth()
    depth.note(1, 1, 1.0)
    depth.note(1, depth.choose(1, [sure])[0], 4.0)
    assert depth.choose(1, [sure])[0] == 1, "the first step with drafts has shown that they do not pay"


# -- all together ------------------------------------------------------------------------------------


def test_a_reply_that_rewrites_its_prompt_is_written_in_few_rounds(
    make_loop: MakeLoop, demo_forward: Forward, tokenizer: TextTokenizer
) -> None:
    text = ids_of("".join(f"line {i} says {i * 7919 % 1000} and then {i * 31 % 97}.\n" for i in range(30)))
    changed = [*text[:100], *ids_of("something else"), *text[110:]]
    prompt = [*text, *ids_of("Rewrite:")]
    end_id = tokenizer.controls["<|im_end|>"].id

    def ask(options: LoopOptions) -> tuple[Outcome, int]:
        forward = ScriptedForward(demo_forward, script(len(prompt), changed, end_id))
        driver = Driver(
            make_loop(forward=forward, options=options, stop_ids=frozenset({end_id}), drafting=LOOKUP)
        )
        return driver.ask(prompt, max_tokens=2000), driver.loop.counters.n_steps

    without, n_without = ask(OFF)
    outcome, n_steps = ask(ON)
    assert outcome.token_ids == without.token_ids == {0: (*changed, end_id)}
    assert n_steps < n_without / 2.5


def test_a_reply_made_anew_is_guessed_from_the_one_before(make_loop: MakeLoop) -> None:
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=LOOKUP))
    driver.ask(PROMPT, sampling=SEEDED, max_tokens=60)
    again = driver.ask(PROMPT, sampling=SEEDED, max_tokens=60)
    assert again.token_ids == plain(make_loop, sampling=SEEDED, max_tokens=60).token_ids
    assert again.finished[0].n_accepted > 20


def test_what_the_client_foretells_is_guessed(make_loop: MakeLoop) -> None:
    reply = plain(make_loop, sampling=SEEDED, max_tokens=60).token_ids[0]
    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=LOOKUP))
    outcome = driver.ask(PROMPT, sampling=SEEDED, max_tokens=60, prediction=np.array(reply, np.uint32))
    assert outcome.token_ids[0] == reply
    assert outcome.finished[0].n_accepted > 20


def test_other_sessions_are_never_quoted(make_loop: MakeLoop) -> None:
    chat = chat_prompt([[1, 2, *PROMPT], [1, 3, 20, 30, 2]], roles=["system", "user"], header=[1, 4, 5])
    seen: list[Sequence[NDArray[np.uint32]]] = []

    def new_drafter(quotes: Sequence[NDArray[np.uint32]], text: NDArray[np.uint32]) -> Lookup:
        seen.append(quotes)
        return Lookup(quotes, text)

    driver = Driver(make_loop(options=ON, stop_ids=frozenset(), drafting=Drafting(new_drafter)))
    driver.ask(chat, session="a", sampling=SEEDED, max_tokens=40)
    other = driver.ask(chat, session="b", sampling=SEEDED, max_tokens=4)
    assert other.report.reused_tokens > 0
    assert seen == [(), ()]
