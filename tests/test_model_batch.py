"""Decoding together: who else is in the batch, and who comes and goes, changes no reply."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from model.batch import DecodeBatch
from model.forward import Forward
from model.load import load

LENGTHS = (5, 40, 64, 3, 130)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Forward:
    return load(tiny.write_text(tmp_path_factory.mktemp("dense")))


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


@settings(max_examples=10, deadline=None)
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
