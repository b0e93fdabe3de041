"""The picking of tokens, against references written in numpy."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from model.logits import BLOCK, likeliest, logprobs_of
from model.sampling import Sampler, SamplingParams, sample_rows

VOCAB = 1500  # more than one block, and no multiple of it
assert VOCAB > BLOCK
N_DRAWS = 4000


def logits_of(seed: int, n: int = VOCAB) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=n).astype(np.float32) * 3


def reference(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities: temperature, then top-k, then top-p over what is left, then min-p."""
    scaled = logits.astype(np.float64) / params.temperature
    probabilities = np.exp(scaled - scaled.max())
    order = np.argsort(-probabilities, kind="stable")
    if params.top_k:
        probabilities[order[params.top_k :]] = 0
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities[order]) - probabilities[order]
    cut = before >= params.top_p
    cut[0] = False
    probabilities[order[cut]] = 0
    probabilities[probabilities < params.min_p * probabilities.max()] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
        SamplingParams(temperature=1.7, top_k=5),
        SamplingParams(top_p=0.3),
        SamplingParams(top_p=0.0),
        SamplingParams(top_k=VOCAB * 2, top_p=0.9),
        SamplingParams(top_k=VOCAB),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=2.0, top_k=50, top_p=0.8, min_p=0.1),
        SamplingParams(top_k=1),
    ],
)
def test_tokens_are_drawn_as_often_as_the_reference_says(params: SamplingParams) -> None:
    logits = logits_of(1)
    expected = reference(logits, params)
    samplers = [Sampler(SamplingParams(**{**_fields(params), "seed": i}), VOCAB) for i in range(N_DRAWS)]
    drawn: list[int] = []
    for start in range(0, N_DRAWS, 500):
        rows = mx.broadcast_to(mx.array(logits)[None], (500, VOCAB))
        drawn += np.array(sample_rows(samplers[start : start + 500], rows)).tolist()
    counts = np.bincount(drawn, minlength=VOCAB)
    assert not counts[expected == 0].any()
    # Pearson's statistic over tokens that are expected five times or more; the rest together.
    common = expected * N_DRAWS >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum()) * N_DRAWS
    statistic = ((observed - wanted) ** 2 / np.maximum(wanted, 1e-9)).sum()
    n_free = max(len(observed) - 1, 1)
    assert statistic < n_free + 5 * np.sqrt(2 * n_free) + 5


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.05),
        SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=0.1),
        SamplingParams(temperature=0, frequency_penalty=0.4, repetition_penalty=1.2),
    ],
)
def test_fused_sampling_picks_the_same_tokens(params: SamplingParams) -> None:
    def replies(*, fuses: bool) -> list[list[int]]:
        samplers = [
            Sampler(replace(params, seed=i), VOCAB, prompt_ids=range(i), index=i, fuses=fuses)
            for i in range(3)
        ]
        logits = mx.array(np.stack([logits_of(i) for i in range(3)]))
        return [np.array(sample_rows(samplers, logits)).tolist() for _ in range(12)]

    assert replies(fuses=True) == replies(fuses=False)


@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_without_temperature_the_likeliest_token_is_taken(temperature: float) -> None:
    logits = logits_of(2)
    sampler = Sampler(SamplingParams(temperature=temperature), VOCAB)
    assert int(sampler(mx.array(logits)).item()) == logits.argmax()


@pytest.mark.parametrize("params", [SamplingParams(seed=7), SamplingParams(seed=7, top_k=20, top_p=0.9)])
def test_a_seeded_reply_does_not_depend_on_company(params: SamplingParams) -> None:
    rows = [logits_of(seed) for seed in range(20)]
    alone = Sampler(params, VOCAB)
    wanted = [int(alone(mx.array(row)).item()) for row in rows]
    watched = Sampler(params, VOCAB)
    company = [
        Sampler(SamplingParams(top_k=k, temperature=t, top_p=0.8), VOCAB) for k, t in ((50, 1), (0, 0))
    ]
    found = []
    for row in rows:
        batch = mx.array(np.stack([logits_of(99), row, logits_of(98)]))
        found.append(int(sample_rows([company[0], watched, company[1]], batch)[1].item()))
    assert found == wanted


def test_seeds_and_replies_have_sequences_of_their_own() -> None:
    def sequence(seed: int | None, index: int = 0) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed), VOCAB, index=index)
        return [int(sampler(mx.array(logits_of(3))).item()) for _ in range(12)]

    assert sequence(1) == sequence(1)
    assert sequence(1) != sequence(2)
    assert sequence(1) != sequence(1, index=1)
    assert sequence(None) != sequence(None)
    assert sequence(-1) == sequence(-1)


def test_penalties_follow_the_reply_and_the_prompt() -> None:
    logits = logits_of(4, 40)
    params = SamplingParams(
        temperature=0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25
    )
    prompt, reply = [1, 2, 2], [2, 5, 5]
    sampler = Sampler(params, 40, prompt)
    for token in reply:
        sampler.accept(mx.array(token, dtype=mx.uint32))
    wanted = logits.copy()
    for token in {*prompt, *reply}:
        wanted[token] = wanted[token] / 1.3 if wanted[token] > 0 else wanted[token] * 1.3
    for token in {*reply}:
        wanted[token] -= 0.5 + 0.25 * reply.count(token)
    np.testing.assert_allclose(np.array(sampler.adjust(mx.array(logits))), wanted, rtol=1e-5)


def test_sampled_tokens_are_counted_without_being_read() -> None:
    sampler = Sampler(SamplingParams(temperature=0, frequency_penalty=2.0), 3)
    logits = mx.array([1.0, 0.5, -5.0])
    assert [int(sampler(logits).item()) for _ in range(4)] == [0, 1, 0, 1]


def test_what_is_written_in_place_of_a_token_is_what_counts() -> None:
    samplers = [Sampler(SamplingParams(temperature=0, frequency_penalty=2.0), 3) for _ in range(2)]
    logits = mx.array([[3.0, 2.5, 2.0]] * 2)
    swaps = [lambda token: mx.where(token == 0, 2, token).astype(mx.uint32), None]
    tokens = [sample_rows(samplers, logits, None, swaps).tolist() for _ in range(2)]
    assert tokens == [[2, 0], [2, 1]]


def test_a_bias_lifts_and_bans() -> None:
    logits = mx.array(logits_of(5, 40))
    lifted = Sampler(SamplingParams(temperature=0, logit_bias=((7, 100.0),)), 40)
    assert int(lifted(logits).item()) == 7
    best = int(mx.argmax(logits).item())
    banned = Sampler(SamplingParams(logit_bias=((best, -100.0),)), 40)
    assert best not in {int(banned(logits).item()) for _ in range(200)}


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.9)])
@pytest.mark.parametrize("draw", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_range_of_draws_pick_allowed_tokens(
    monkeypatch: pytest.MonkeyPatch, params: SamplingParams, draw: float
) -> None:
    monkeypatch.setattr(Sampler, "draw", lambda _: draw)
    mask = np.zeros(VOCAB, dtype=np.bool_)
    mask[[700, 3, 1400]] = True
    for seed in range(5):
        token = int(Sampler(params, VOCAB)(mx.array(logits_of(seed)), mx.array(mask)).item())
        assert mask[token]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.9)])
def test_a_mask_is_never_broken_however_unlikely_what_it_leaves(params: SamplingParams) -> None:
    logits = np.full(VOCAB, 50.0, dtype=np.float32)
    logits[[3, 1400]] = -50
    mask = np.zeros(VOCAB, dtype=np.bool_)
    mask[[3, 1400]] = True
    sampler = Sampler(params, VOCAB)
    drawn = {int(sampler(mx.array(logits), mx.array(mask)).item()) for _ in range(60)}
    assert drawn == {3, 1400}


def test_greedy_rows_and_drawn_rows_may_share_a_batch() -> None:
    rows = np.stack([logits_of(6), logits_of(7), logits_of(8)])
    samplers = [Sampler(SamplingParams(temperature=t, top_k=k), VOCAB) for t, k in ((0, 0), (1, 1), (1, 0))]
    picked = np.array(sample_rows(samplers, mx.array(rows)))
    assert picked.dtype == np.uint32
    assert picked[:2].tolist() == rows.argmax(-1)[:2].tolist()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_every_float_type_of_logits_is_taken(dtype: mx.Dtype) -> None:
    logits = mx.array(logits_of(9)).astype(dtype)
    for params in (SamplingParams(), SamplingParams(top_k=20, top_p=0.9), SamplingParams(temperature=0)):
        assert 0 <= int(Sampler(params, VOCAB)(logits).item()) < VOCAB


@pytest.mark.parametrize("n_top", [0, 1, 5, 20, VOCAB + 1])
def test_f06_log_probabilities_are_the_models_own(n_top: int) -> None:
    logits = logits_of(10)
    wanted = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    token = 77
    (told,) = logprobs_of(mx.array(logits)[None], mx.array([token]), [n_top])
    assert told is not None
    own, alternatives = told.read()
    assert own == pytest.approx(wanted[token], abs=1e-4)
    order = np.argsort(-wanted)[:n_top]
    assert [token_id for token_id, _ in alternatives] == order.tolist()
    np.testing.assert_allclose([value for _, value in alternatives], wanted[order], atol=1e-4)


def test_log_probabilities_do_not_depend_on_which_rows_are_asked_together() -> None:
    rows = np.stack([np.round(logits_of(i), 1) for i in range(4)])  # rounded: there are ties
    tokens, n_top = [3, 9, 27, 81], [5, None, 20, 5]
    told = logprobs_of(mx.array(rows), mx.array(tokens), n_top)
    assert told[1] is None
    for row in (0, 2, 3):
        together = told[row]
        (alone,) = logprobs_of(mx.array(rows[row : row + 1]), mx.array(tokens[row : row + 1]), [n_top[row]])
        assert together is not None
        assert alone is not None
        assert together.read() == alone.read()


@pytest.mark.parametrize("n_top", [1, 3, 20, 100])
@pytest.mark.parametrize("n", [1500, 40_000, 40_001])
def test_the_likeliest_of_many_are_found_by_blocks(n: int, n_top: int) -> None:
    values = np.stack([logits_of(seed, n) for seed in range(3)])
    values[1, -5:] = 50  # all in the last, unfinished block
    values[2, :] = np.sort(values[2])
    index, greatest = likeliest(mx.array(values), n_top)
    wanted = -np.sort(-values, axis=-1)[:, :n_top]
    np.testing.assert_array_equal(np.array(greatest), wanted)
    np.testing.assert_array_equal(np.take_along_axis(values, np.array(index).astype(int), -1), wanted)


def test_a_mask_that_leaves_less_than_top_k_is_kept_in_a_large_vocabulary() -> None:
    n = 40_001
    mask = np.zeros(n, dtype=np.bool_)
    mask[[5, n - 1]] = True
    sampler = Sampler(SamplingParams(top_k=20), n)
    logits = mx.zeros((n,))
    drawn = [int(sampler(logits, mx.array(mask)).item()) for _ in range(200)]
    assert 60 < drawn.count(5) < 140
    assert drawn.count(5) + drawn.count(n - 1) == 200


def _fields(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


def test_rows_with_all_kinds_of_wishes_are_each_as_if_alone_and_the_models_logits_stay() -> None:
    kinds = (
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, frequency_penalty=1.5, logit_bias=((3, 4.0),)),
        SamplingParams(temperature=0.8, seed=4, presence_penalty=0.5),
        SamplingParams(temperature=0.8, seed=5, repetition_penalty=1.7, logit_bias=((9, 2.0), (11, -3.0))),
        SamplingParams(temperature=0.7, seed=6, top_k=5, repetition_penalty=1.1, frequency_penalty=0.2),
        SamplingParams(temperature=0, logit_bias=((5, 1.0),)),
    )

    def samplers() -> list[Sampler]:
        return [
            Sampler(params, 40, [1, 2, 3], end_ids=[7], min_tokens=3 * (i % 2))
            for i, params in enumerate(kinds)
        ]

    together, alone = samplers(), samplers()
    mask = mx.array([i % 3 > 0 for i in range(40)])
    for step in range(8):
        rows = np.random.default_rng(step).standard_normal((len(kinds), 40)).astype(np.float32) * 2
        logits = mx.array(rows)
        masks = [mask if i == step % 6 else None for i in range(len(kinds))]
        if step == 4:  # one leaves and comes back: rows are stacked anew
            together = [sampler.ahead(()) for sampler in together]
        picked = sample_rows(together, logits, masks).tolist()
        assert picked == [int(a(logits[i], masks[i]).item()) for i, a in enumerate(alone)]
        np.testing.assert_array_equal(np.array(logits), rows)
