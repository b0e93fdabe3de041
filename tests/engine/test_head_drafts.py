"""Drafts of the model's own head: a reply is the same with and without, and what the head remembers goes
where the conversation goes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from model.checkpoint.load import load
from model.codec import StateCodec
from model.forward import Forward
from model.mtp import MtpBatch
from model.sampling import SamplingParams
from model.state import MtpRows
from model.text.grammar.rules import json_schema
from server.engine.drafting import HEAD, SIZES, Acceptance, Drafting, MeasuredDepth, Speculation
from server.engine.loop import EngineLoop
from server.events import ReplyFormat
from tests.engine.test_disk import N_SESSIONS, N_TOGETHER, RestartedWalk, random_steps
from tests.engine.test_drafts import OFF, ON, PROMPT, SEEDED, MakeLoop, plain
from tests.engine.test_warm_equals_cold import SCENARIO, Step
from tests.fakes import tiny
from tests.fakes.drafters import Always, Oracle
from tests.fakes.driver import GREEDY, Driver
from tests.fakes.heads import Guessing, assert_rows_are_those_of, rows_of
from tests.fakes.scripted import ids_of

SIZES_TRIED = (4, 6, 2, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's checkpoint with a head."""
    return tiny.write_with_mtp(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def headed(path: Path) -> Forward:
    """The tiny model with its head."""
    return load(path, has_mtp=True)


def by_head(sizes: Sequence[int] = SIZES_TRIED) -> Drafting:
    """Drafts of the head alone, as deep as is told."""
    return Drafting(lambda *_: Oracle((), (0,), n_matched=0), Always(sizes))


def told(monkeypatch: pytest.MonkeyPatch, reply: Sequence[int] | None, right: Sequence[int]) -> Guessing:
    guessing = Guessing(reply, len(PROMPT), right)
    monkeypatch.setattr(
        MtpBatch, "guess", lambda batch, keys, tokens, n: guessing.guess(batch, keys, tokens, n)
    )
    return guessing


def check_rows(loop: EngineLoop, forward: Forward) -> None:
    """What the head remembers of every conversation at rest is right."""
    for entry in loop.store._shelf.entries():
        assert_rows_are_those_of(forward, entry.ids.view.copy(), entry.state)


@pytest.mark.parametrize("right", [(99,), (0,), (1,), (2,), (0, 1, 2, 3, 99)])
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SEEDED,
        SamplingParams(
            temperature=0.8, seed=2, frequency_penalty=0.7, presence_penalty=0.3, repetition_penalty=1.2
        ),
    ],
    ids=["greedy", "seeded", "penalties"],
)
def test_a_reply_is_the_same_however_often_the_head_is_right(
    make_loop: MakeLoop,
    headed: Forward,
    monkeypatch: pytest.MonkeyPatch,
    sampling: SamplingParams,
    right: Sequence[int],
) -> None:
    without = plain(make_loop, sampling=sampling, max_tokens=40)
    guessing = told(monkeypatch, without.token_ids[0], right)
    driver = Driver(make_loop(forward=headed, options=ON, stop_ids=frozenset(), drafting=by_head()))
    outcome = driver.ask(PROMPT, sampling=sampling, max_tokens=40)
    assert outcome.token_ids == without.token_ids
    end = outcome.finished[0]
    assert guessing.n_guesses > 0
    assert (end.n_accepted == 0) == (right == (0,))
    assert (end.n_drafted == end.n_accepted) == (right == (99,))
    assert driver.loop.counters.n_drafted == end.n_drafted
    (entry,) = driver.loop.store._shelf.entries()
    assert entry.ids.view.tolist() == [*PROMPT, *without.token_ids[0]]
    check_rows(driver.loop, headed)
    follow = [*PROMPT, *without.token_ids[0], 5, 6]
    assert driver.ask(follow).token_ids == plain(make_loop, follow).token_ids
    check_rows(driver.loop, headed)


def test_several_replies_and_siblings_are_the_same(make_loop: MakeLoop, headed: Forward) -> None:
    prompts = [[*PROMPT, 100 + i] for i in range(3)]
    alone = [plain(make_loop, p, sampling=SEEDED, max_tokens=20 + i) for i, p in enumerate(prompts)]
    siblings = plain(make_loop, sampling=SEEDED, max_tokens=20, n_replies=3)
    driver = Driver(make_loop(forward=headed, options=ON, stop_ids=frozenset(), drafting=by_head()))
    together = [
        driver.submit(p, session=f"s{i}", sampling=SEEDED, max_tokens=20 + i) for i, p in enumerate(prompts)
    ]
    several = driver.submit(PROMPT, sampling=SEEDED, max_tokens=20, n_replies=3)
    driver.run()
    assert [outcome.token_ids for outcome in together] == [outcome.token_ids for outcome in alone]
    assert several.token_ids == siblings.token_ids
    check_rows(driver.loop, headed)


def test_stop_strings_and_log_probabilities_are_the_same(
    make_loop: MakeLoop, headed: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plain(make_loop, sampling=SEEDED, max_tokens=60)
    form = ReplyFormat(stops=(whole.text()[20:24],))
    without = plain(make_loop, sampling=SEEDED, max_tokens=60, reply=form, top_logprobs=2)
    told(monkeypatch, whole.token_ids[0], (99, 1))
    driver = Driver(make_loop(forward=headed, options=ON, stop_ids=frozenset(), drafting=by_head((6,))))
    outcome = driver.ask(PROMPT, sampling=SEEDED, max_tokens=60, reply=form, top_logprobs=2)
    assert (outcome.finished, outcome.text()) == (without.finished, without.text())
    check_rows(driver.loop, headed)


def test_under_a_grammar_a_reply_is_the_same(make_loop: MakeLoop, headed: Forward) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 6}}, "required": ["a"]}
    form = ReplyFormat(grammar=json_schema(schema))
    prompt = [i % 256 for i in ids_of("Say it in JSON:")]
    asked = {"sampling": SEEDED, "max_tokens": 30, "reply": form}
    without = Driver(make_loop(options=OFF)).ask(prompt, **asked)
    driver = Driver(make_loop(forward=headed, options=ON, drafting=by_head()))
    outcome = driver.ask(prompt, **asked)
    assert (outcome.token_ids, outcome.failed) == (without.token_ids, without.failed)
    check_rows(driver.loop, headed)


def test_a_head_that_fails_costs_its_drafts_alone(
    make_loop: MakeLoop, headed: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> mx.array:
        raise RuntimeError("planted")

    monkeypatch.setattr(MtpBatch, "guess", broken)
    driver = Driver(make_loop(forward=headed, options=ON, stop_ids=frozenset(), drafting=by_head()))
    outcome = driver.ask(PROMPT, max_tokens=20)
    assert outcome.token_ids == plain(make_loop, max_tokens=20).token_ids
    assert outcome.finished[0].n_drafted == 0
    check_rows(driver.loop, headed)


# -- what is remembered ------------------------------------------------------------------------------


class HeadedWalk(RestartedWalk):
    """A walk with a head that is wrong at every depth, whose rows are looked at after every step."""

    def __init__(self, make_loop: MakeLoop, headed: Forward, folder: Path) -> None:
        def make(**options: object) -> EngineLoop:
            if "cache_dir" in options:
                options |= {"forward": headed, "drafting": by_head((4, 2, 6, 1, 3))}
            return make_loop(**options)

        super().__init__(make, folder)
        self._headed = headed

    def take(self, step: Step) -> None:
        super().take(step)
        assert any(self._warm.loop.store._shelf.entries()), "whatever fails its checks is dropped"
        check_rows(self._warm.loop, self._headed)


def walk_through(make_loop: MakeLoop, headed: Forward, folder: Path, script: Sequence[Step]) -> HeadedWalk:
    walk = HeadedWalk(make_loop, headed, folder)
    for i, step in enumerate(script):
        walk.take(step)
        if i % 4 == 3:
            walk.restart()
            walk.fork(0, 1)
    walk.close()
    return walk


def test_rows_are_right_after_turns_edits_forks_and_restarts(
    make_loop: MakeLoop, headed: Forward, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    guessing = told(monkeypatch, None, (0, 1, 2, 3, 4, 5))
    walk_through(make_loop, headed, tmp_path, SCENARIO)
    assert guessing.n_guesses > 20


def keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    note = MtpBatch.note
    monkeypatch.setattr(
        MtpBatch,
        "note",
        lambda self, keys, ids, hidden, n_kept: note(self, keys, ids, hidden, [ids.shape[1] for _ in n_kept]),
    )


def keeps_the_last_row_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    go_back = MtpRows.go_back

    def planted(self: MtpRows, n_tokens: int, hidden: mx.array | None) -> None:
        go_back(self, n_tokens, hidden if self.hidden is None or hidden is None else self.hidden)

    monkeypatch.setattr(MtpRows, "go_back", planted)


def cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MtpRows, "n_rows", lambda self, n_tokens: self.kv.length)  # noqa: ARG005


def forks_one_row_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = MtpRows.copy

    def planted(self: MtpRows, n_tokens: int, hidden: mx.array | None) -> MtpRows:
        copied = copy(self, n_tokens, hidden)
        copied.kv = self.kv.copy(min(copied.kv.length + 1, self.kv.length))
        return copied

    monkeypatch.setattr(MtpRows, "copy", planted)


def stores_the_rows_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = StateCodec.rows

    def planted(self: StateCodec, state: object, start: int, end: int) -> object:
        stored = dict(rows(self, state, start, end))  # type: ignore[arg-type]
        return {n: np.roll(a, 1, axis=2) if n.startswith("mtp") else a for n, a in stored.items()}

    monkeypatch.setattr(StateCodec, "rows", planted)


@pytest.mark.parametrize(
    "plant",
    [
        keeps_all,
        keeps_the_last_row_of_the_model,
        cuts_nothing,
        forks_one_row_too_many,
        stores_the_rows_beside,
    ],
)
def test_a_fault_in_what_is_kept_restored_cut_forked_or_stored_is_noticed(
    make_loop: MakeLoop,
    headed: Forward,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        walk_through(make_loop, headed, tmp_path, SCENARIO)


@pytest.mark.slow
def test_rows_are_right_after_random_operations(
    make_loop: MakeLoop,
    headed: Forward,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    n, done = pytestconfig.getoption("operations"), Counter[str]()
    guessing = told(monkeypatch, None, (0, 1, 2, 3, 4, 5))
    for number, start in enumerate(range(0, n, N_TOGETHER)):
        chance = random.Random(number)
        walk = HeadedWalk(make_loop, headed, tmp_path / str(number))
        for step in random_steps(chance, min(N_TOGETHER, n - start)):
            if chance.random() < 0.15:
                walk.restart()
            if chance.random() < 0.1:
                walk.travel(chance.randrange(N_SESSIONS))
            walk.take(step)
        walk.close()
        done += walk.done
    print(f"{n} operations: {guessing.n_guesses} guesses, {dict(sorted(done.items()))}")
    for name in ("restarts", "sessions out of a file", "guesses that came true", "guesses taken back"):
        assert done[name] > 0, name


def test_what_a_server_without_a_head_left_on_the_disk_goes_on_with_one(
    make_loop: MakeLoop, headed: Forward, path: Path, tmp_path: Path
) -> None:
    first = Driver(make_loop(forward=load(path), cache_dir=tmp_path, stop_ids=frozenset()))
    reply = first.ask(PROMPT, max_tokens=6).token_ids[0]
    first.loop.store.disk.close()
    second = Driver(make_loop(forward=headed, cache_dir=tmp_path, stop_ids=frozenset(), drafting=by_head()))
    follow = [*PROMPT, *reply, *range(40)]
    outcome = second.ask(follow, max_tokens=20)
    assert outcome.report.reused_tokens > 100
    assert outcome.token_ids == plain(make_loop, follow, max_tokens=20).token_ids
    (entry,) = second.loop.store._shelf.entries()
    assert rows_of(entry.state).first > 100
    check_rows(second.loop, headed)


# -- how much is guessed -----------------------------------------------------------------------------


def depth_of(head_s: float) -> MeasuredDepth:
    """Where a plain step takes 1 s, each token more 0.1 s, and each that the head drafts ``head_s`` more."""
    depth = MeasuredDepth()
    for _ in range(5):
        depth.note(1, 1, 1.0)
        for size in SIZES[1:]:
            depth.note(1, size, 1.0 + 0.1 * (size - 1))
            depth.note(1, size, 1.0 + (0.1 + head_s) * (size - 1), has_head=True)
        depth.note(1, 1, 1.0)
    return depth


def speculation(n_matched: int, head_rate: float) -> Speculation:
    made = Speculation(Oracle((), (0,), n_matched=n_matched), has_head=True)
    for i in range(200):
        made.acceptance.note(HEAD, 1, int(i % 10 < 10 * head_rate))
    return made


def test_the_head_drafts_as_deep_as_pays_and_not_at_all_where_nothing_does() -> None:
    assert depth_of(0.1).choose(1, [speculation(0, 0.9)]) > (3, True)
    assert depth_of(0.3).choose(1, [speculation(0, 0.6)]) == (2, True)
    assert depth_of(0.9).choose(1, [speculation(0, 0.3)])[0] == 1


def test_a_long_match_is_taken_before_the_head_and_the_head_before_a_short_one() -> None:
    assert depth_of(0.1).choose(1, [speculation(32, 0.8)])[1] is False
    assert depth_of(0.1).choose(1, [speculation(3, 0.9)])[1] is True


def test_a_head_that_is_never_right_costs_less_than_two_in_a_hundred() -> None:
    depth, guess = depth_of(0.2), Speculation(Oracle((), (0,), n_matched=0), Acceptance(), has_head=True)
    seconds = 0.0
    n_steps = 2000
    for _ in range(n_steps):
        size, has_head = depth.choose(1, [guess]) if depth.may_pay(1, [guess]) else (1, False)
        took = 1.0 + 0.3 * (size - 1)
        depth.note(1, size, took, has_head=has_head)
        seconds += took
        if size > 1:
            guess.guess(size - 1)
            guess.note(size - 1, 0)
        else:
            guess.n_plain += 1
    assert seconds / n_steps < 1.02


def test_plain_steps_are_measured_now_and_then_though_the_head_always_pays() -> None:
    depth, guess = depth_of(0.0), speculation(0, 0.9)
    sizes = []
    for _ in range(200):
        size, has_head = depth.choose(1, [guess]) if depth.may_pay(1, [guess]) else (1, False)
        depth.note(1, size, 1.0, has_head=has_head)
        sizes.append(size)
    assert sizes.count(1) == 3


def test_the_head_waits_until_plain_steps_are_measured() -> None:
    assert not MeasuredDepth().may_pay(1, [speculation(0, 0.9)])
