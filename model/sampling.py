"""Picks the next token from logits, on the device, without waiting for anything.

The order is that of transformers: repetition penalty, presence and frequency penalties, logit bias, the
grammar's mask, then temperature, top-k, top-p over what top-k left, min-p. One number in [0, 1) per
token decides by inversion of the cumulated probabilities. It is made on the host from seed and token
count alone, so a seeded reply depends neither on company in the batch nor on the device's generator.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from model.logits import draw, fused_draw

GREEDY_BELOW = 1e-5
"""Temperatures below this pick the likeliest token: divided by less, float32 logits leave their range."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is picked. The defaults change nothing about the model's distribution.

    Attributes:
        temperature: 0 picks the likeliest token; else logits are divided by it.
        top_p: keep the fewest likeliest tokens whose probability reaches it; 1 keeps all.
        top_k: keep that many likeliest tokens; 0 keeps all, more than the vocabulary does no harm.
        min_p: keep tokens at least that likely relative to the likeliest; 0 keeps all.
        seed: the same seed gives the same reply, whatever else runs; None draws one.
        presence_penalty: taken off the logit of every token the reply already holds.
        frequency_penalty: the same, times how often the reply holds it.
        repetition_penalty: divides positive and multiplies negative logits of every token that the
            prompt or the reply holds; 1 does nothing.
        logit_bias: (token id, value added to its logit), ids ascending.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def is_greedy(self) -> bool:
        """The likeliest token is taken; no chance is involved."""
        return self.temperature < GREEDY_BELOW


class Sampler:
    """The picking of one reply: parameters, and what the reply holds so far.

    Args:
        params: see :class:`SamplingParams`.
        vocab_size: V, the length of a row of logits.
        prompt_ids: ids [n] of the prompt, for the repetition penalty.
        index: which of several replies to the prompt this is; each has a sequence of its own.
        end_ids: tokens that are not picked among the first ``min_tokens`` of the reply.
        fuses: whether to fuse what can be; where launching an operation takes longer than running it.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: NDArray[np.uint32] | Sequence[int] = (),
        index: int = 0,
        *,
        end_ids: Sequence[int] = (),
        min_tokens: int = 0,
        fuses: bool = False,
    ) -> None:
        self.params = params
        self.fuses = fuses
        self._seed = _hash64(secrets.randbits(63) if params.seed is None else params.seed, index)
        self._n_accepted = 0
        self._bias = _dense(params.logit_bias, vocab_size)
        self._min_tokens = min_tokens
        self._ends = _dense([(end_id, -np.inf) for end_id in end_ids], vocab_size) if min_tokens else None
        self._counts = mx.zeros((vocab_size,), dtype=mx.float32) if self.is_counting else None
        self._shared: tuple[_Penalised, int] | None = None
        self._in_prompt: mx.array | None = None
        if params.repetition_penalty != 1.0:
            self._in_prompt = mx.array(_presence(prompt_ids, vocab_size))

    @property
    def is_plain(self) -> bool:
        """Nothing is added to or taken from the model's logits."""
        return not self.is_counting and self._bias is None and not self._is_too_short

    @property
    def is_counting(self) -> bool:
        """What the reply holds decides about what comes next."""
        params = self.params
        return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1.0

    @property
    def added(self) -> tuple[mx.array, ...]:
        """What is added to the logits of the next token, [V] each."""
        ends = self._ends if self._is_too_short else None
        return tuple(each for each in (self._bias, ends) if each is not None)

    @property
    def _is_too_short(self) -> bool:
        return self._n_accepted < self._min_tokens

    def __call__(self, logits: mx.array, mask: mx.array | None = None) -> mx.array:
        """The next token, a lazy uint32 scalar.

        Args:
            logits: [V], any float type.
            mask: [V] bool, True where a token is allowed; None allows all.
        """
        return sample_rows([self], logits[None], [mask])[0]

    def adjust(self, logits: mx.array, mask: mx.array | None = None) -> mx.array:
        """Logits [V] float32 after penalties, bias and mask."""
        return _adjusted([self], logits[None], [mask])[0]

    def accept(self, token: mx.array) -> None:
        """The reply grew by ``token``, a lazy scalar."""
        _accept([self], token.reshape(1))

    @property
    def counts(self) -> mx.array | None:
        """How often the reply holds each token, [V] float32; None where no penalty wants to know."""
        if self._shared is not None:
            shared, row = self._shared
            self._counts, self._shared = shared.counts[row], None
        return self._counts

    def ahead(self, token_ids: Sequence[int]) -> Sampler:
        """The sampler of the token after ``token_ids``, should the reply grow by those."""
        later = copy(self)
        later._n_accepted += len(token_ids)
        if later.counts is not None and token_ids:
            later._counts = later.counts.at[mx.array(list(token_ids))].add(1.0)
        return later

    def draw(self) -> float:
        """The number in [0, 1) of the next token; it depends on the token's place in the reply alone."""
        return (_hash64(self._seed, self._n_accepted + 1) >> 11) * 2.0**-53


Swap = Callable[[mx.array], mx.array]
"""From a sampled token to the one that is written in its place, both lazy uint32 scalars."""


def sample_rows(
    samplers: Sequence[Sampler],
    logits: mx.array,
    masks: Sequence[mx.array | None] | None = None,
    swaps: Sequence[Swap | None] | None = None,
) -> mx.array:
    """The next token of every row, lazy uint32 [B]; each row as if it were alone.

    Args:
        samplers: one for each row of ``logits`` [B, V].
        masks: for each row the tokens allowed [V] bool, or None.
        swaps: for each row what is done to its sampled token, or None.
    """
    masks = masks or [None] * len(samplers)
    swaps = swaps or [None] * len(samplers)
    logits = _adjusted(samplers, logits, masks)
    groups: dict[tuple[bool, int], list[int]] = {}
    for row, sampler in enumerate(samplers):
        groups.setdefault(_group(sampler.params, logits.shape[-1]), []).append(row)
    picked = [_pick_group(logits, key, rows, samplers) for key, rows in groups.items()]
    tokens = picked[0] if len(picked) == 1 else _in_rows(picked, list(groups.values()))
    if any(swap is not None for swap in swaps):
        tokens = mx.stack([tokens[i] if swap is None else swap(tokens[i]) for i, swap in enumerate(swaps)])
    _accept(samplers, tokens)
    return tokens


_USUAL = (
    SamplingParams(),
    SamplingParams(top_p=0.95),
    SamplingParams(top_k=20, top_p=0.95),
    SamplingParams(top_k=20, top_p=0.95, min_p=0.1, presence_penalty=1.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.1),
)


def warm_up_sampling(logits: mx.array) -> None:
    """Build what is fused for the usual ways of sampling from ``logits`` [B, V], and for these one by one."""
    n_rows, vocab_size = logits.shape
    for params in _USUAL:
        samplers = [Sampler(params, vocab_size, [0], fuses=True) for _ in range(n_rows)]
        mx.eval(sample_rows(samplers, logits), sample_rows(samplers[:1], logits[:1]))


@dataclass(eq=False)
class _Penalised:
    """Replies with penalties that are sampled together, a row for each; stacked once for all their steps.

    Attributes:
        counts: how often each holds each token, [B, V] float32.
        in_prompt: which tokens its prompt holds, [B, V] bool; None where no row asks.
        repetition, frequency, presence: the penalties, [B, 1].
    """

    samplers: tuple[Sampler, ...]
    counts: mx.array
    in_prompt: mx.array | None
    repetition: mx.array
    frequency: mx.array
    presence: mx.array

    @classmethod
    def of(cls, samplers: Sequence[Sampler]) -> _Penalised:
        """The rows of ``samplers``: those of the last step, as long as the same reply stands in each."""
        shared = samplers[0]._shared
        if shared is not None and shared[0].samplers == tuple(samplers):
            return shared[0]
        rows = [cast(mx.array, sampler.counts) for sampler in samplers]
        nothing = mx.zeros(rows[0].shape, mx.bool_)
        prompts = [sampler._in_prompt for sampler in samplers]
        params = [sampler.params for sampler in samplers]
        stacked = cls(
            tuple(samplers),
            mx.stack(rows),
            mx.stack([nothing if row is None else row for row in prompts])
            if any(row is not None for row in prompts)
            else None,
            _column([p.repetition_penalty for p in params]),
            _column([p.frequency_penalty for p in params]),
            _column([p.presence_penalty for p in params]),
        )
        for row, sampler in enumerate(samplers):
            sampler._shared = stacked, row
        return stacked

    def adjust(self, logits: mx.array) -> mx.array:
        """Logits [B, V] float32 after the penalties."""
        arrays = [logits, self.counts, self.repetition, self.frequency, self.presence]
        if self.in_prompt is not None:
            arrays.append(self.in_prompt)
        return (_fused_penalise if self.samplers[0].fuses else _penalise)(*arrays)

    def accept(self, tokens: mx.array) -> None:
        """Each reply grew by its own of ``tokens``, [B]."""
        self.counts = self.counts.at[mx.arange(len(self.samplers)), tokens].add(1.0)


def _penalise(
    logits: mx.array,
    counts: mx.array,
    repetition: mx.array,
    frequency: mx.array,
    presence: mx.array,
    in_prompt: mx.array | None = None,
) -> mx.array:
    """See :class:`_Penalised`."""
    holds = counts > 0
    if in_prompt is not None:
        scaled = mx.where(logits > 0, logits / repetition, logits * repetition)
        logits = mx.where(in_prompt | holds, scaled, logits)
    return logits - frequency * counts - presence * holds


_fused_penalise = mx.compile(_penalise)


def _column(values: Sequence[float]) -> mx.array:
    return _same_column(tuple(values))


@lru_cache(maxsize=64)  # a batch asks for the same ones at every step
def _same_column(values: tuple[float, ...]) -> mx.array:
    """[B, 1] float32."""
    return mx.array(np.array(values, np.float32)[:, None])


def _adjusted(samplers: Sequence[Sampler], logits: mx.array, masks: Sequence[mx.array | None]) -> mx.array:
    """Logits [B, V] after each row's penalties, bias and mask: as they are where no row has any, else
    float32."""
    counting = [row for row, sampler in enumerate(samplers) if sampler.is_counting]
    added = [row for row, sampler in enumerate(samplers) if sampler.added]
    masked = [row for row, mask in enumerate(masks) if mask is not None]
    if not (counting or added or masked):
        return logits
    logits = logits.astype(mx.float32)
    if counting:
        penalised = _Penalised.of([samplers[row] for row in counting])
        logits = _replaced(logits, counting, penalised.adjust)
    if added:
        addends = mx.stack([sum(samplers[row].added[1:], samplers[row].added[0]) for row in added])
        logits = _replaced(logits, added, lambda rows: rows + addends)
    if masked:
        allowed = mx.stack([cast(mx.array, masks[row]) for row in masked])
        logits = _replaced(logits, masked, lambda rows: mx.where(allowed, rows, -mx.inf))
    return logits


def _replaced(logits: mx.array, rows: list[int], change: Callable[[mx.array], mx.array]) -> mx.array:
    """``logits`` [B, V], of which ``rows`` are changed."""
    if len(rows) == logits.shape[0]:
        return change(logits)
    at, changed = mx.array(rows), mx.array(logits)  # the model's own stay as they are
    changed[at] = change(logits[at])
    return changed


def _accept(samplers: Sequence[Sampler], tokens: mx.array) -> None:
    """Each reply grew by its own of ``tokens``, lazy [B]."""
    counting = [row for row, sampler in enumerate(samplers) if sampler.is_counting]
    if counting:
        own = tokens if len(counting) == len(samplers) else tokens[mx.array(counting)]
        _Penalised.of([samplers[row] for row in counting]).accept(own)
    for sampler in samplers:
        sampler._n_accepted += 1


def _pick_group(
    logits: mx.array, key: tuple[bool, int], rows: list[int], samplers: Sequence[Sampler]
) -> mx.array:
    """Tokens uint32 [len(rows)] of the rows that :func:`_group` puts together under ``key``."""
    if len(rows) < len(samplers):
        logits = logits[mx.array(rows)]
    is_greedy, n_kept = key
    if is_greedy:
        return mx.argmax(logits, axis=-1).astype(mx.uint32)
    return _pick(logits.astype(mx.float32), n_kept, [samplers[row] for row in rows]).astype(mx.uint32)


def _in_rows(picked: list[mx.array], groups: Sequence[list[int]]) -> mx.array:
    """The groups' tokens, each in its own row."""
    rows = [row for group in groups for row in group]
    return mx.concatenate(picked)[mx.array(np.argsort(rows))]


def _group(params: SamplingParams, vocab_size: int) -> tuple[bool, int]:
    """Rows that can be picked together: greedy or not, and how many candidates are sorted (0 for none).

    Rows are not mixed over different top-k: how ties are broken must not depend on company."""
    if params.is_greedy:
        return True, 0
    if 0 < params.top_k < vocab_size:
        return False, params.top_k
    return False, vocab_size if params.top_p < 1.0 else 0


def _pick(logits: mx.array, n_kept: int, samplers: Sequence[Sampler]) -> mx.array:
    """Tokens [B] drawn from rows [B, V], of which the ``n_kept`` likeliest stay (0: all, unsorted)."""
    params = [sampler.params for sampler in samplers]
    arrays = {
        "logits": logits,
        "draws": mx.array(np.array([[sampler.draw()] for sampler in samplers], np.float32)),
        "temperature": _column([p.temperature for p in params]),
    }
    if n_kept and any(p.top_p < 1.0 for p in params):
        arrays["top_p"] = _column([p.top_p for p in params])
    if any(p.min_p > 0.0 for p in params):
        arrays["min_p"] = _column([p.min_p for p in params])
    return fused_draw(n_kept)(arrays) if samplers[0].fuses else draw(n_kept, arrays)


def _dense(bias: Sequence[tuple[int, float]], vocab_size: int) -> mx.array | None:
    if not bias:
        return None
    dense = np.zeros(vocab_size, dtype=np.float32)
    for token_id, value in bias:
        dense[token_id] = value
    return mx.array(dense)


def _presence(ids: NDArray[np.uint32] | Sequence[int], vocab_size: int) -> NDArray[np.bool_]:
    present = np.zeros(vocab_size, dtype=np.bool_)
    present[np.asarray(ids, dtype=np.int64)] = True
    return present


def _hash64(*numbers: int) -> int:
    data = b"".join((number % 2**64).to_bytes(8, "little") for number in numbers)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
