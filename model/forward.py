"""The model as a function: ids and a state in, logits and the state further on out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.batch import DecodeBatch
from model.checkpoint.config import ModelConfig
from model.checkpoint.fingerprint import ModelFingerprint
from model.checkpoint.weights import Weights, parameters
from model.device import Device
from model.layers.attention import StepGroup
from model.layers.delta_rule import CHUNK
from model.layers.gdn import Gdn
from model.layers.ragged import Ragged, n_rows_in_chunks
from model.mtp import append
from model.sampling import warm_up_sampling
from model.state import Checkpoint, KvLayout, Recurrent, State, capacity_for, stack_recurrent

_LEAST = 4 * CHUNK
_WARM_PARTS, _WARM_S = 3, 1.0
_WEIGHT = 0.5  # of the newest pass in the moving average


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a prefill leaves besides the state.

    Attributes:
        logits: [V] after the last token, float32.
        checkpoints: the recurrent states asked for, ascending.
    """

    logits: mx.array
    checkpoints: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What is fed to one of several sequences.

    Attributes:
        ids: [n] token ids, n >= 1.
        capture_at: as :meth:`Forward.prefill` takes it.
    """

    state: State
    ids: NDArray[np.uint32]
    capture_at: Sequence[int] = ()


class Pace:
    """The measured speed of prefill.

    Attributes:
        seconds_per_token: None until a pass has been measured.
    """

    def __init__(self) -> None:
        self.seconds_per_token: float | None = None

    def note(self, n_tokens: int, seconds: float) -> None:
        """Record a pass. Short ones are ignored, because a pass has a fixed cost."""
        if n_tokens < _LEAST:
            return
        newest, known = seconds / n_tokens, self.seconds_per_token
        self.seconds_per_token = newest if known is None else _WEIGHT * newest + (1 - _WEIGHT) * known

    def tokens_within(self, seconds: float, most: int) -> int:
        """Tokens that a pass can read in ``seconds``: whole chunks, and at least a few of them."""
        if self.seconds_per_token is None:
            return _LEAST
        n = int(seconds / self.seconds_per_token)
        return max(_LEAST, min(most, n // CHUNK * CHUNK))


class Forward:
    """The weights of one model and the passes over them; holds nothing of any sequence.

    Everything here runs on the one thread that loaded the weights.

    Attributes:
        weights: by dotted name, of layers as they were put together.
        n_weight_bytes: what the weights take.
        part_tokens: tokens of a prompt that one pass reads.
        few_tokens: tokens of each sequence that go through a step of several tokens; 0 where the
            device gains nothing by that.
        reads_ragged: whether :meth:`prefill_together` gains anything with longer ones.
        kv_layout: how rows of keys and values are stored.
    """

    def __init__(
        self, model: nn.Module, config: ModelConfig, fingerprint: ModelFingerprint, device: Device
    ) -> None:
        dtype = getattr(mx, fingerprint.dtype)
        self.config = config
        self.fingerprint = fingerprint
        self._device = device
        self._network = device.network(model, config)
        self.few_tokens = max(self._network.few_sizes, default=0)
        self.reads_ragged = device.reads_ragged
        self.weights = parameters(model)
        self.n_weight_bytes = sum(w.nbytes for w in self.weights.values())
        self._token_bytes = temporary_bytes(config, self.weights, dtype, device.layers_at_once)
        self.part_tokens = part_tokens(device.most_part_tokens, self._token_bytes)
        self._pace = Pace()
        self.kv_layout = KvLayout(config.n_kv_heads, config.head_dim, dtype, fingerprint.kv_bits)
        self._empty = State.empty(config, self.kv_layout, has_mtp=self.has_mtp)

    def fit_parts(self, n_bytes: int) -> None:
        """Limit a pass to the tokens whose temporaries, attention's included, fit in ``n_bytes``."""
        self.part_tokens = part_tokens(
            self._device.most_part_tokens, self._token_bytes, n_bytes - self._device.attention_bytes
        )

    def tokens_within(self, seconds: float) -> int:
        """Tokens of a prompt that take about ``seconds`` at the speed measured last: at least a few chunks,
        at most :attr:`part_tokens`."""
        return self._pace.tokens_within(seconds, self.part_tokens)

    def new_state(self) -> State:
        """The state before any token."""
        return self._empty.another()

    def state_bytes(self, n_tokens: int) -> int:
        """Bytes of a state that stands for ``n_tokens``."""
        rows = (len(self._empty.kv) + self.has_mtp) * capacity_for(n_tokens)
        return self._empty.n_bytes + rows * self.kv_layout.row_bytes

    @property
    def has_mtp(self) -> bool:
        """Whether the model has a head that guesses the token after the next."""
        return self._network.mtp is not None

    @property
    def fuses_sampling(self) -> bool:
        """Whether :class:`model.sampling.Sampler` should fuse what it can."""
        return self._device.fuses_sampling

    def new_batch(self) -> DecodeBatch:
        """A batch without sequences."""
        return DecodeBatch(self._network)

    def warm_up(self) -> None:
        """Build the kernels that are compiled on first use, so that no request waits for them: those of steps
        alone and of a padded batch, and those of a full part of a prompt, or of as much of one as is read in
        a second."""
        for n_tokens in self._network.few_sizes:
            for wanted in ([], [1]):
                self.prefill(self.new_state(), np.zeros(n_tokens, np.uint32), capture_at=wanted)
        if self.reads_ragged:
            ids = np.zeros(max(self.few_tokens, CHUNK) + 1, np.uint32)
            self.prefill_together([Part(self.new_state(), ids, (1,)) for _ in range(2)])
        for size in self._device.warm_sizes:
            batch = self.new_batch()
            for key in range(size):
                state = self.new_state()
                ids = np.zeros(1 if key else CHUNK + 1, np.uint32)
                self.prefill(state, ids, capture_at=[1])
                batch.join(key, state)
            logits = batch.step(mx.zeros((size,), mx.uint32))
            mx.eval(logits)
            if batch.has_mtp:
                mx.eval(batch.guess(batch.keys, mx.zeros((size,), mx.uint32), 2))
            if self.fuses_sampling:
                warm_up_sampling(logits)
        # Until the measured speed is that of a pass in which nothing was compiled any more.
        for _ in range(_WARM_PARTS if self._device.warms_parts else 0):
            n_tokens = self.tokens_within(_WARM_S)
            self.prefill(self.new_state(), np.zeros(n_tokens, np.uint32), capture_at=[CHUNK + 1])

    def prefill(self, state: State, ids: NDArray[np.uint32], *, capture_at: Sequence[int] = ()) -> Prefilled:
        """Feed ``ids`` to ``state``.

        Args:
            ids: [n] token ids, n >= 1.
            capture_at: absolute positions p, state.length < p <= state.length + n, ascending, after
                which the recurrent states are wanted. They do not cut the pass.

        Returns:
            The logits of the last position and the checkpoints. They and the state are evaluated.
        """
        state.check()
        start, end = state.length, state.length + len(ids)
        assert len(ids) >= 1
        assert all(a < b for a, b in zip((start, *capture_at), (*capture_at, end + 1), strict=True))
        if len(ids) == 1:
            return self._prefill_one(state, mx.array(ids), capture_at)
        if len(ids) <= self.few_tokens:
            return self._prefill_few(state, mx.array(ids)[None], capture_at)
        checkpoints: list[Checkpoint] = []
        hidden = None
        for first in range(start, end, self.part_tokens):
            last = min(first + self.part_tokens, end)
            wanted = [p for p in capture_at if first < p <= last]
            part = mx.array(ids[first - start : last - start])[None]
            began_at = time.perf_counter()
            hidden, captured = self._prefill_part(state, part, wanted)
            mx.eval(hidden, *state.arrays, *(a for checkpoint in captured for a in checkpoint.arrays))
            self._pace.note(last - first, time.perf_counter() - began_at)
            checkpoints += captured
        assert hidden is not None
        logits = self._network.head(hidden[:, -1:])[0, 0]
        mx.eval(logits)
        return Prefilled(logits, tuple(checkpoints))

    def _prefill_one(self, state: State, token: mx.array, capture_at: Sequence[int]) -> Prefilled:
        """:meth:`prefill` of one token [1] by a decode step."""
        group = StepGroup(mx.array([0]), state.kv, state.length, None)
        recurrent = list(state.recurrent)
        rows, hidden = self._network.step(token, [group], recurrent)
        logits = rows[0]
        state.recurrent = [layer.detached() for layer in recurrent]
        state.position += 1
        self._remember(state, token[None], hidden, ())
        mx.eval(logits, *state.arrays)
        return Prefilled(logits, (state.snapshot(),) if capture_at else ())

    def _prefill_few(self, state: State, ids: mx.array, capture_at: Sequence[int]) -> Prefilled:
        """:meth:`prefill` of ids [1, T] by a step of several tokens."""
        start, n_tokens = state.length, ids.shape[1]
        inside = sorted({*(p - start for p in capture_at), n_tokens})
        group = StepGroup(mx.array([0]), state.kv, start, None)
        hidden, trails = self._network.extend(ids, [group], state.recurrent, inside)
        states = [[trail.at([n]) for trail in trails] for n in inside]
        state.recurrent = states[-1]
        state.position += n_tokens
        own = self._remember(state, ids, hidden, [p - start for p in capture_at])
        checkpoints = [
            Checkpoint(p, tuple(states[inside.index(p - start)]), last)
            for p, last in zip(capture_at, own, strict=True)
        ]
        logits = self._network.head(hidden[:, -1:])[0, 0]
        mx.eval(logits, *state.arrays, *(a for checkpoint in checkpoints for a in checkpoint.arrays))
        return Prefilled(logits, tuple(checkpoints))

    def prefill_together(self, parts: Sequence[Part]) -> list[Prefilled]:
        """:meth:`prefill` of several sequences in one pass. A fault leaves every state such that
        :meth:`model.state.State.truncate` to its position makes it what it was.

        Args:
            parts: no state twice.
        """
        for part in parts:
            part.state.check()
        if max(len(part.ids) for part in parts) <= self.few_tokens:
            return self._together_few(parts)
        return self._together_ragged(parts)

    def _together_few(self, parts: Sequence[Part]) -> list[Prefilled]:
        """:meth:`prefill_together` by a step of several tokens."""
        starts = [part.state.length for part in parts]
        n_tokens = [len(part.ids) for part in parts]
        ids = np.zeros((len(parts), max(n_tokens)), np.uint32)
        for row, part in enumerate(parts):
            ids[row, : n_tokens[row]] = part.ids
        inside = [[p - start for p in part.capture_at] for part, start in zip(parts, starts, strict=True)]
        counts = sorted({*n_tokens, *(n for row in inside for n in row)})
        groups = [
            StepGroup(mx.array([row]), part.state.kv, starts[row], None) for row, part in enumerate(parts)
        ]
        states = (part.state.recurrent for part in parts)
        stacked = [stack_recurrent(layer) for layer in zip(*states, strict=True)]
        hidden, trails = self._network.extend(mx.array(ids), groups, stacked, counts)

        def states_after(wanted: Sequence[int]) -> list[list[Recurrent]]:
            """Of each sequence after its own of ``wanted`` tokens: the state of each GDN layer."""
            layers = [trail.at(wanted) for trail in trails]
            return [[layer.row(row) for layer in layers] for row in range(len(parts))]

        # The k-th capture of every sequence at once; those that have fewer give their end instead.
        captured = [
            states_after([own[k] if k < len(own) else n_tokens[row] for row, own in enumerate(inside)])
            for k in range(max(map(len, inside)))
        ]
        ends = states_after(n_tokens)
        last = hidden[mx.arange(len(parts)), mx.array(n_tokens) - 1]
        for part, start, n in zip(parts, starts, n_tokens, strict=True):
            part.state.truncate(start + n)  # the rows of padding
        own = [[layer[row] for layer in captured[: len(inside[row])]] for row in range(len(parts))]
        rows = [hidden[row : row + 1, :n] for row, n in enumerate(n_tokens)]
        return self._finish(parts, last, rows, ends, own)

    def _together_ragged(self, parts: Sequence[Part]) -> list[Prefilled]:
        """:meth:`prefill_together` with all tokens laid end to end."""
        pasts = [part.state.length for part in parts]
        inside = [[p - past for p in part.capture_at] for part, past in zip(parts, pasts, strict=True)]
        ragged = Ragged(pasts, [len(part.ids) for part in parts], inside)
        began_at = time.perf_counter()
        rows = zip(*(part.state.kv for part in parts), strict=True)
        recurrent = zip(*(part.state.recurrent for part in parts), strict=True)
        ends: list[list[Recurrent]] = [[] for _ in parts]
        captured: list[list[list[Recurrent]]] = [[[] for _ in own] for own in inside]
        x, h = self._network.embed(mx.array(np.concatenate([part.ids for part in parts]))[None])
        for block in self._network.blocks:
            if isinstance(block.mixer, Gdn):
                mixed, after, found = block.mixer.prefill_ragged(h, next(recurrent), ragged)
                for row in range(len(parts)):
                    ends[row].append(after[row])
                    for kept, state in zip(captured[row], found[row], strict=True):
                        kept.append(state)
            else:
                mixed = block.mixer.prefill_ragged(h, next(rows), ragged)
            x, h = block.feed(x, mixed)
        prefilled = self._finish(
            parts, h[0, ragged.last], [h[:, span] for span in ragged.spans], ends, captured
        )
        self._pace.note(sum(ragged.n_tokens), time.perf_counter() - began_at)
        return prefilled

    def _finish(
        self,
        parts: Sequence[Part],
        last: mx.array,
        hidden: Sequence[mx.array],
        ends: Sequence[list[Recurrent]],
        captured: Sequence[Sequence[Sequence[Recurrent]]],
    ) -> list[Prefilled]:
        """Evaluate what a pass over several sequences leaves; then, with no more to go wrong, move them on.

        Args:
            last: rows [B, H] of their last tokens.
            hidden: by sequence, those of all of its tokens, [1, n, H].
            ends: by sequence, the state of each GDN layer.
            captured: by sequence and capture, the same.
        """
        logits = self._network.head(last[:, None])[:, 0]
        prefilled: list[Prefilled] = []
        after: list[Checkpoint] = []
        for row, part in enumerate(parts):
            own = hidden[row]
            start = part.state.position
            kept = zip(part.capture_at, captured[row], strict=True)
            captures = [Checkpoint(p, tuple(at), self._last_row(own[:, : p - start])) for p, at in kept]
            prefilled.append(Prefilled(logits[row], tuple(captures)))
            if self._network.mtp is not None and part.state.mtp is not None:
                append(self._network.mtp, part.state.mtp, mx.array(part.ids)[None], own)
            after.append(Checkpoint(start + len(part.ids), tuple(ends[row]), self._last_row(own)))
        rows = [array for part in parts for kv in part.state.all_kv for array in kv.arrays]
        checkpoints = [checkpoint for each in prefilled for checkpoint in each.checkpoints]
        states = [array for checkpoint in (*after, *checkpoints) for array in checkpoint.arrays]
        mx.eval(*(each.logits for each in prefilled), *rows, *states)
        for part, end in zip(parts, after, strict=True):
            part.state.advance(end)
        return prefilled

    def _prefill_part(
        self, state: State, ids: mx.array, capture_at: Sequence[int]
    ) -> tuple[mx.array, list[Checkpoint]]:
        """One pass over ids [1, T]: hidden rows [1, T, H] and the checkpoints, all lazy."""
        start, n_tokens = state.length, ids.shape[1]
        inside = [p - start for p in capture_at]
        captured: list[list[Recurrent]] = []
        rows, recurrent = iter(state.kv), iter(state.recurrent)
        after: list[Recurrent] = []
        x, h = self._network.embed(ids)
        for block in self._network.blocks:
            if isinstance(block.mixer, Gdn):
                mixed, end, layer_captured = block.mixer.prefill(h, next(recurrent), inside)
                after.append(end)
                captured.append(layer_captured)
            else:
                mixed = block.mixer.prefill(h, next(rows))
            x, h = block.feed(x, mixed)
        state.recurrent = after
        state.position += n_tokens
        own = self._remember(state, ids, h, inside)
        return h, [
            Checkpoint(p, tuple(layer[i] for layer in captured), own[i]) for i, p in enumerate(capture_at)
        ]

    def _remember(
        self, state: State, ids: mx.array, hidden: mx.array, inside: Sequence[int]
    ) -> list[mx.array | None]:
        """Append the head's rows of ids [1, T], of which the model made ``hidden`` [1, T, H], if it has one.

        Returns:
            after so many of these tokens as ``inside`` says, what :attr:`Checkpoint.hidden` wants.
        """
        if self._network.mtp is not None and state.mtp is not None:
            append(self._network.mtp, state.mtp, ids, hidden)
            state.mtp.hidden = self._last_row(hidden)
        return [self._last_row(hidden[:, :n]) for n in inside]

    def _last_row(self, hidden: mx.array) -> mx.array | None:
        """Of the rows of some tokens, [1, n, H], what :attr:`Checkpoint.hidden` wants behind them."""
        return mx.contiguous(hidden[:, -1:]) if self.has_mtp else None


def shares_of_pass(n_left: Sequence[int], n_tokens: int, n_rows: int) -> list[int]:
    """How many tokens of each of several prompts one pass takes.

    The prompts in front are served first. All are taken whole but the last that finds room: it is cut at a
    whole chunk.

    Args:
        n_left: tokens that each prompt has left, at least 1.
        n_tokens: the most tokens of the pass, which its time grows with.
        n_rows: the most rows, which its memory grows with: those that fill a prompt's last chunk count too.
    """
    shares: list[int] = []
    for n in n_left:
        if not shares:
            share = min(n, n_tokens)
        elif n <= n_tokens and n_rows_in_chunks(n) <= n_rows:
            share = n
        else:
            share = max(min(n_tokens // CHUNK, n_rows // CHUNK - 1), 0) * CHUNK
        shares.append(share)
        n_tokens -= share
        n_rows -= n_rows_in_chunks(share) if share else 0
    return shares


def part_tokens(most: int, token_bytes: int, n_bytes: int | None = None) -> int:
    """Tokens that one pass reads: whole GDN chunks whose temporaries fit in ``n_bytes`` (None: no limit), at
    least a few.

    Args:
        most: the most that suits the device.
        token_bytes: see :func:`temporary_bytes`.
    """
    fitting = most if n_bytes is None else n_bytes // token_bytes // CHUNK * CHUNK
    return max(_LEAST, min(most, fitting))


def temporary_bytes(
    config: ModelConfig, weights: Weights, dtype: mx.Dtype, layers_at_once: int | None
) -> int:
    """Roughly the bytes of temporaries that one token of a prompt takes during a pass. Attention scores are
    not counted: they have a bound of their own.

    Args:
        weights: by dotted name. The output of each matrix is counted twice, the second time for what is
            computed from it.
        dtype: in which the layers compute.
        layers_at_once: how many layers have temporaries in memory at the same time; None for all.
    """
    # Of the chunked rule in float32: U and the new values, W and the keys, and a state for each chunk.
    widths = config.value_head_dim + config.key_head_dim
    states = config.value_head_dim * config.key_head_dim // CHUNK
    of_rule = 4 * config.n_value_heads * (2 * widths + states)
    layers = [of_rule if type_ == "linear_attention" else 0 for type_ in config.layer_types]
    for name, weight in weights.items():
        path = name.split(".")
        if (
            "layers" not in path
            or path[0] == "mtp"
            or path[-1] != "weight"
            or weight.ndim < 2
            or "conv1d" in path
        ):
            continue
        n_times = config.n_chosen if weight.ndim == 3 else 1
        layers[int(path[path.index("layers") + 1])] += 2 * dtype.size * n_times * weight.shape[-2]
    return sum(sorted(layers)[-(layers_at_once or len(layers)) :])
