"""Decoding together: who else is in the batch, and who comes and goes, changes no reply."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model import batch as batch_module
from model.batch import DecodeBatch
from model.checkpoint.load import load
from model.forward import Forward
from model.state import STEP
from tests.fakes import tiny

LENGTHS = (5, 40, 64, 3, 130)


@pytest.fixture(scope="module", params=["dense", "experts"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forward:
    """On the CPU the first steps in NumPy, the second as array operations."""
    shape = {"dense": tiny.DENSE, "experts": tiny.MOE}[request.param]
    return load(tiny.write_text(tmp_path_factory.mktemp("model"), shape))


@pytest.fixture(params=[1024, 8], autouse=True)
def small(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the second value sequences this short already part into groups of like length."""
    with mock.patch.object(batch_module, "_SMALL", request.param):
        yield


def prompt(key: int) -> np.ndarray:
    return np.random.default_rng(key).integers(0, 256, LENGTHS[key % len(LENGTHS)]).astype(np.uint32)


def alone(model: Forward, key: int, n_tokens: int) -> list[int]:
    """The greedy reply of a sequence with no company, fed through fresh prefills only."""
    ids = prompt(key)
    reply: list[int] = []
    for _ in range(n_tokens):
        logits = model.prefill(model.new_state(), np.concatenate([ids, np.array(reply, np.uint32)])).logits
        reply.append(int(mx.argmax(logits)))
    return reply


class Company:
    """Greedy replies of the members of one batch."""

    def __init__(self, model: Forward) -> None:
        self.model = model
        self.batch: DecodeBatch = model.new_batch()
        self.replies: dict[int, list[int]] = {}

    def join(self, key: int) -> None:
        state = self.model.new_state()
        logits = self.model.prefill(state, prompt(key)).logits
        self.replies[key] = [int(mx.argmax(logits))]
        self.batch.join(key, state)

    def step(self) -> None:
        last = mx.array([self.replies[key][-1] for key in self.batch.keys], mx.uint32)
        for key, token in zip(self.batch.keys, mx.argmax(self.batch.step(last), -1).tolist(), strict=True):
            self.replies[key].append(token)


def test_replies_do_not_depend_on_who_comes_and_goes(model: Forward) -> None:
    company = Company(model)
    for key in range(5):
        company.join(key)
        company.step()
        company.step()
    for key in (2, 0):
        company.batch.leave(key)
        company.step()
    for key, reply in company.replies.items():
        assert reply == alone(model, key, len(reply))


def test_a_member_that_leaves_continues_alone(model: Forward) -> None:
    company = Company(model)
    for key in range(3):
        company.join(key)
    for _ in range(4):
        company.step()
    state = company.batch.leave(1)
    state.check()
    assert state.length == LENGTHS[1] + 4
    reply = company.replies[1]
    logits = model.prefill(state, np.array(reply[-1:], np.uint32)).logits
    assert [*reply, int(mx.argmax(logits))] == alone(model, 1, len(reply) + 1)


def test_a_snapshot_in_the_middle_of_decoding_can_be_returned_to(model: Forward) -> None:
    company = Company(model)
    company.join(0)
    company.join(1)
    company.step()
    checkpoint = company.batch.snapshot(1)
    assert checkpoint.length == company.batch.length(1) == LENGTHS[1] + 1
    for _ in range(3):
        company.step()
    state = company.batch.leave(1)
    state.restore(checkpoint)
    state.check()
    logits = model.prefill(state, np.array(company.replies[1][1:2], np.uint32)).logits
    assert int(mx.argmax(logits)) == company.replies[1][2]


def test_the_bytes_of_the_members_add_up_to_those_of_the_batch(model: Forward) -> None:
    company = Company(model)
    for key in range(5):
        company.join(key)
        if key % 2:
            company.step()
    for _ in range(2):
        batch = company.batch
        assert sum(batch.n_bytes_of(key) for key in batch.keys) == batch.n_bytes
        batch.leave(batch.keys[1])


def test_a_fork_of_a_member_starts_where_its_checkpoint_stands(model: Forward) -> None:
    company = Company(model)
    for key in range(3):
        company.join(key)
        company.step()
    checkpoint = company.batch.snapshot(1)
    company.step()
    fork = company.batch.fork(1, checkpoint)
    fork.check()
    company.step()
    n = checkpoint.length - LENGTHS[1]
    logits = model.prefill(fork, np.array(company.replies[1][n : n + 1], np.uint32)).logits
    assert int(mx.argmax(logits)) == company.replies[1][n + 1]
    for key, reply in company.replies.items():
        assert reply == alone(model, key, len(reply))


def test_a_key_that_leaves_and_comes_back_as_another_sequence_is_that_one(model: Forward) -> None:
    company = Company(model)
    for key in (0, 1):
        company.join(key)
    company.step()
    company.batch.leave(0)
    state = model.new_state()
    model.prefill(state, prompt(2))
    company.batch.join(0, state)
    logits = company.batch.step(mx.array([company.replies[1][-1], 7], mx.uint32))
    fresh = model.prefill(model.new_state(), np.append(prompt(2), np.uint32(7))).logits
    assert np.allclose(logits[1], fresh, atol=1e-3)


def test_a_long_sequence_does_not_pad_short_ones_to_its_length(model: Forward) -> None:
    states = {key: model.new_state() for key in range(3)}
    for key, state in states.items():
        model.prefill(state, np.zeros(3000 if key == 0 else 10, np.uint32))
    alone_bytes = sum(state.n_bytes for state in states.values())
    batch = model.new_batch()
    for key, state in states.items():
        batch.join(key, state)
    batch.step(mx.zeros((3,), mx.uint32))
    assert batch.n_bytes <= alone_bytes


def test_a_lone_member_keeps_its_buffers(model: Forward) -> None:
    state = model.new_state()
    model.prefill(state, prompt(1))
    rows = state.kv[0]
    batch = model.new_batch()
    batch.join(0, state)
    batch.step(mx.array([1], mx.uint32))
    assert batch.leave(0).kv[0] is rows


def test_a_member_can_leave_before_its_first_step(model: Forward) -> None:
    company = Company(model)
    company.join(0)
    company.step()
    company.join(1)
    state = company.batch.leave(1)
    assert state.length == LENGTHS[1]
    assert company.batch.keys == (0,)
    company.step()
    assert company.replies[0] == alone(model, 0, 3)


def test_an_empty_batch_holds_nothing(model: Forward) -> None:
    company = Company(model)
    for key in (0, 1):
        company.join(key)
    company.step()
    assert company.batch.n_bytes > 0
    for key in (1, 0):
        company.batch.leave(key)
    assert company.batch.keys == ()
    assert company.batch.n_bytes == 0


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.sampled_from(["step", "join", "leave", "return"]), max_size=14))
def test_any_order_of_joins_and_leaves_gives_the_replies_of_sequences_alone(
    model: Forward, moves: list[str]
) -> None:
    company, away, n_joined = Company(model), {}, 0
    for move in moves:
        if move == "join" and n_joined < 4:
            company.join(n_joined)
            n_joined += 1
        elif move == "leave" and company.batch.keys:
            key = company.batch.keys[0]
            away[key] = company.batch.leave(key)
        elif move == "return" and away:
            company.batch.join(*away.popitem())
        elif move == "step" and company.batch.keys:
            company.step()
    for key, reply in company.replies.items():
        assert reply == alone(model, key, len(reply))


def test_a_step_after_which_more_memory_is_held_says_so(model: Forward) -> None:
    company = Company(model)
    n_bytes, n_said = 0, 0
    for step in range(2 * STEP + 20):
        if step in (0, 5):
            company.join(step)
        if step == STEP:
            company.batch.leave(0)
        company.step()
        assert company.batch.has_grown or company.batch.n_bytes == n_bytes
        n_bytes = company.batch.n_bytes
        n_said += company.batch.has_grown
    assert n_said < 10


def extend(company: Company, guesses: dict[int, list[int]]) -> None:
    """One round with guessed tokens: what the model would have written stays, and one token more."""
    keys = company.batch.keys
    rows = [[company.replies[key][-1], *guesses[key]] for key in keys]
    longest = max(map(len, rows))
    ids = mx.array([row + [7] * (longest - len(row)) for row in rows], mx.uint32)
    said = mx.argmax(company.batch.extend(ids), axis=-1).tolist()
    kept = []
    for key, row, after in zip(keys, rows, said, strict=True):
        n = next((i for i, guess in enumerate(row[1:]) if guess != after[i]), len(row) - 1) + 1
        company.replies[key] += after[:n]
        kept.append(n)
    company.batch.keep(kept)


@pytest.mark.parametrize("n_guesses", [1, 3, 8])
def test_guessed_tokens_change_no_reply_however_many_are_right(model: Forward, n_guesses: int) -> None:
    company = Company(model)
    wanted = {key: alone(model, key, 40) for key in (0, 1, 4)}
    for key in wanted:
        company.join(key)
    for round_ in range(4):
        guesses = {}
        for key in wanted:  # right up to a place that moves from round to round and member to member
            n_said, n_right = len(company.replies[key]), (round_ + key) % (n_guesses + 1)
            right = wanted[key][n_said : n_said + n_right]
            guesses[key] = right + [255] * (n_guesses - n_right - (key == 1))
        extend(company, guesses)
        if round_ == 1:
            company.step()
    for key, reply in company.replies.items():
        assert reply[:40] == wanted[key][: len(reply)]
    state = company.batch.leave(4)
    state.check()
    fed = np.concatenate([prompt(4), np.array(company.replies[4][:-1], np.uint32)])
    fresh = model.new_state()
    model.prefill(fresh, fed)
    assert state.length == len(fed)
    for one, other in zip(state.snapshot().arrays, fresh.snapshot().arrays, strict=True):
        assert mx.allclose(one, other, atol=1e-4).item()


def test_members_that_were_extended_stand_together_again_after_some_steps(
    model: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "_APART", 3)
    company = Company(model)
    for key in (1, 2):
        company.join(key)
    company.step()
    together = len(company.batch._groups)
    extend(company, {1: [3], 2: [3]})
    sizes = []
    for _ in range(4):
        company.step()
        sizes.append(len(company.batch._groups))
    assert sizes == [2, 2, together, together]
    for key, reply in company.replies.items():
        assert reply == alone(model, key, len(reply))
