"""The sequences that decode together: one read of the weights a step, for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from model.layers.attention import StepGroup
from model.layers.gdn import Trail
from model.layers.network import Network
from model.mtp import MtpBatch
from model.state import STEP, Buffers, Checkpoint, KvRows, Recurrent, State, capacity_for, stack_recurrent

# Steps after an extension during which members stay in buffers of their own: another extension may follow
# soon, and moving members costs a copy of their rows.
_APART = 64

# Sequences share padded buffers while the padding at most doubles them, or hardly matters.
_SMALL = 1024


@dataclass(slots=True, eq=False)
class _Group:
    """Members whose KV rows stand in common buffers, flush right.

    Attributes:
        keys: in the order of the buffers' rows.
        kv: one for each full-attention layer.
        padding: columns on the left of each member; it never changes while the group lasts.
    """

    keys: tuple[int, ...]
    kv: list[KvRows]
    padding: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return sum(rows.n_bytes for rows in self.kv)

    def rows_of(self, key: int, n_rows: int) -> list[KvRows]:
        """The first ``n_rows`` rows of a member, in buffers of their own."""
        at = self.keys.index(key)
        return [rows.row(at, self.padding[at], n_rows) for rows in self.kv]


class DecodeBatch:
    """Owns the states of its members from :meth:`join` to :meth:`leave`.

    Members of like length stand in one padded buffer per layer, so that a step writes one column for
    all. Joins and leaves are only noted; buffers are rebuilt at the next step, those of the groups that
    changed. A lone member keeps the buffers it came with.

    Attributes:
        has_grown: the last step may have changed :attr:`n_bytes`.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self.has_grown = False
        self._lengths: dict[int, int] = {}  # by key, in the order of joining
        self._joined: dict[int, State] = {}  # members that no step has seen yet
        self._groups: list[_Group] = []
        self._recurrent: list[Recurrent] = []  # rows of self._rows, in order
        self._rows: tuple[int, ...] = ()
        self._members: list[mx.array] = []  # of each group, in rows of a step
        self._padding: list[mx.array | None] = []  # of each group; None where there is none
        self._trails: list[Trail] = []  # of an extension whose tokens are not kept yet
        self._n_since_extended = _APART  # steps
        self._mtp = None if network.mtp is None else MtpBatch(network.mtp, network.head)
        self._extended: tuple[mx.array, mx.array] | None = None  # ids and rows of the last extension

    @property
    def keys(self) -> tuple[int, ...]:
        """The members, in the order of joining, which is that of the rows of a step."""
        return tuple(self._lengths)

    @property
    def n_bytes(self) -> int:
        """Bytes held for the members, padding included."""
        held = sum(group.n_bytes for group in self._groups) + sum(layer.n_bytes for layer in self._recurrent)
        held += sum(self._mtp.n_bytes_of(key) for key in self._lengths) if self._mtp else 0
        return held + sum(state.n_bytes for state in self._joined.values())

    def n_bytes_of(self, key: int) -> int:
        """The member's part of :attr:`n_bytes`; the parts of all add up to the whole."""
        of_head = self._mtp.n_bytes_of(key) if self._mtp else 0
        if key in self._joined:
            return of_head + self._joined[key].n_bytes
        group = self._group_of(key)
        recurrent = sum(layer.n_bytes for layer in self._recurrent)
        return of_head + self._part(key, group.n_bytes, group.keys) + self._part(key, recurrent, self._rows)

    def length(self, key: int) -> int:
        """Tokens fed to member ``key``."""
        return self._lengths[key]

    def join(self, key: int, state: State) -> None:
        """Take ``state`` over as member ``key``, last in order."""
        assert key not in self._lengths
        state.check()
        self._lengths[key] = state.length
        self._joined[key] = state
        if self._mtp is not None and state.mtp is not None:
            self._mtp.join(key, state.mtp)
            state.mtp = None  # the batch's own until the sequence leaves
        self._n_since_extended = _APART  # buffers are rebuilt in any case

    def leave(self, key: int) -> State:
        """Give member ``key`` back as a state that stands alone, evaluated."""
        state = self._joined.pop(key) if key in self._joined else self._take(key)
        state.mtp = self._mtp.leave(key) if self._mtp else None
        del self._lengths[key]
        # Its row stays in the buffers until the next step, unless nobody else is left in them.
        self._groups = [group for group in self._groups if any(map(self._is_settled, group.keys))]
        if not self._groups:
            self._recurrent, self._rows = [], ()
        mx.eval(*state.arrays)
        return state

    def snapshot(self, key: int) -> Checkpoint:
        """The recurrent states of member ``key`` now, evaluated, in buffers of their own."""
        joined = self._joined.get(key)
        layers = self._recurrent_of(key) if joined is None else joined.recurrent
        hidden = self._mtp.hidden(key) if self._mtp else None
        checkpoint = Checkpoint(self._lengths[key], tuple(layers), hidden)
        mx.eval(*checkpoint.arrays)
        return checkpoint

    def fork(self, key: int, checkpoint: Checkpoint) -> State:
        """A state of its own at ``checkpoint``, taken on member ``key``, which goes on undisturbed."""
        if key in self._joined:
            forked = self._joined[key].fork(checkpoint)
        else:
            kv = self._group_of(key).rows_of(key, checkpoint.length)
            forked = State(kv, list(checkpoint.layers), checkpoint.length)
        forked.mtp = self._mtp.copy(key, checkpoint.length, checkpoint.hidden) if self._mtp else None
        mx.eval(*forked.arrays)
        return forked

    def step(self, tokens: mx.array) -> mx.array:
        """Feed one token to every member.

        Args:
            tokens: [B] ids in the order of :attr:`keys`; may be lazy.

        Returns:
            Logits [B, V], float32, lazy.
        """
        assert tokens.shape == (len(self._lengths),)
        assert not self._trails, "the tokens of the last extension are not kept yet"
        self._n_since_extended += 1
        has_changed = self._rows != self.keys or self._n_since_extended == _APART
        if has_changed:
            self._settle()
        self.has_grown = has_changed or any(rows.is_full for group in self._groups for rows in group.kv[:1])
        logits, hidden = self._network.step(tokens, self._positions(), self._recurrent)
        if self._mtp is not None:
            ones = [1] * len(self._lengths)
            self.has_grown |= self._mtp.note(self.keys, tokens[:, None], hidden, ones)
        for key in self._lengths:
            self._lengths[key] += 1
        return logits

    def extend(self, tokens: mx.array) -> mx.array:
        """Feed T tokens to every member, of which :meth:`keep` must then say how many stay.

        What a member keeps may differ from member to member, so they stand in buffers of their own from here
        on, until a number of steps have kept them abreast.

        Args:
            tokens: [B, T] ids in the order of :attr:`keys`; may be lazy. Where a member has fewer than T,
                anything may follow: it is not to be kept.

        Returns:
            Logits [B, T, V], float32, lazy: of each token, what comes after it.
        """
        assert tokens.shape[0] == len(self._lengths)
        assert not self._trails, "the tokens of the last extension are not kept yet"
        self._n_since_extended = 0
        if self._rows != self.keys or any(len(group.keys) > 1 for group in self._groups):
            self._settle()
        counts = range(1, tokens.shape[1] + 1)
        hidden, self._trails = self._network.extend(tokens, self._positions(), self._recurrent, counts)
        self.has_grown = True
        self._extended = tokens, hidden
        return self._network.head(hidden)

    def keep(self, n_tokens: Sequence[int]) -> None:
        """Let every member keep the first so many tokens, at least one, of the last :meth:`extend`."""
        assert self._trails, "nothing was extended"
        assert len(n_tokens) == len(self._lengths)
        self._recurrent = [trail.at(n_tokens) for trail in self._trails]
        self._trails = []
        if self._mtp is not None:
            assert self._extended is not None
            self._mtp.note(self.keys, *self._extended, n_tokens)
        self._extended = None
        for key, n in zip(self._lengths, n_tokens, strict=True):
            self._lengths[key] += n
            for rows in self._group_of(key).kv:
                rows.truncate(self._lengths[key])

    @property
    def has_mtp(self) -> bool:
        """Whether :meth:`guess` may be called."""
        return self._mtp is not None

    def guess(self, keys: Sequence[int], tokens: mx.array, n_tokens: int) -> mx.array:
        """What the model's multi-token prediction head takes to follow; see :meth:`MtpBatch.guess`."""
        assert self._mtp is not None
        return self._mtp.guess(keys, tokens, n_tokens)

    def _positions(self) -> list[StepGroup]:
        """Each group's buffers and positions for the next step."""
        return [
            StepGroup(members, group.kv, self._lengths[group.keys[0]] + group.padding[0], padding)
            for group, members, padding in zip(self._groups, self._members, self._padding, strict=True)
        ]

    def _settle(self) -> None:
        """Rebuild groups and rows after the membership changed, moving everything that must move at once."""
        self._recurrent = self._settled_recurrent()
        self._rows = self.keys
        apart = self._n_since_extended < _APART
        wanted = [(key,) for key in self._lengths] if apart else list(_partition(self._lengths))
        kept = {group.keys: group for group in self._groups if all(map(self._is_settled, group.keys))}
        built = {keys: self._build(keys) for keys in wanted if keys not in kept}
        # Before anybody writes to the rows that these were copied from.
        mx.eval(*(side for group in built.values() for rows in group.kv for side in rows.arrays))
        self._groups = [kept.get(keys) or built[keys] for keys in wanted]
        self._joined = {}
        self._members = [mx.array([self._rows.index(key) for key in group.keys]) for group in self._groups]
        self._padding = [
            mx.array(group.padding, mx.int32) if any(group.padding) else None for group in self._groups
        ]

    def _settled_recurrent(self) -> list[Recurrent]:
        """The recurrent states of all members, in order; those that stand together are moved together."""
        stayed = [key for key in self._rows if self._is_settled(key)]
        layers = self._recurrent
        if len(stayed) < len(self._rows):
            at = mx.array([self._rows.index(key) for key in stayed], mx.uint32)
            layers = [layer.rows(at) for layer in layers]
        parts = [layers] if stayed else []
        parts += [self._joined[key].recurrent for key in self._lengths if key in self._joined]
        return [stack_recurrent(layer) for layer in zip(*parts, strict=True)]

    def _build(self, keys: tuple[int, ...]) -> _Group:
        """Buffers for a group that was not there before, from where its members stand now; lazy."""
        length = max(self._lengths[key] for key in keys)
        sources: list[tuple[list[KvRows], list[int] | None]] = []
        for group, own in itertools.groupby(keys, self._source):
            if isinstance(group, _Group):
                at = [group.keys.index(key) for key in own]
                sources.append((group.kv, None if len(at) == len(group.keys) else at))
            else:
                sources += [(self._joined[key].kv, None) for key in own]
        layers = zip(*([Members(rows, at) for rows in kv] for kv, at in sources), strict=True)
        padding = tuple(length - self._lengths[key] for key in keys)
        return _Group(keys, [merge(layer, length) for layer in layers], padding)

    def _source(self, key: int) -> _Group | None:
        """The group in whose buffers member ``key`` stands; None while it has its own."""
        return None if key in self._joined else self._group_of(key)

    def _is_settled(self, key: int) -> bool:
        """Whether ``key`` is a member that stands in the buffers."""
        return key in self._lengths and key not in self._joined

    def _part(self, key: int, n_bytes: int, sharers: Iterable[int]) -> int:
        """An even part of ``n_bytes``; what does not divide is the first one's."""
        settled = [other for other in sharers if self._is_settled(other)]
        return n_bytes // len(settled) + (n_bytes % len(settled) if key == settled[0] else 0)

    def _group_of(self, key: int) -> _Group:
        return next(group for group in self._groups if key in group.keys)

    def _take(self, key: int) -> State:
        """A settled member on its own; alone in its group it keeps the buffers, else they are copied."""
        group, length = self._group_of(key), self._lengths[key]
        kv = group.kv if len(group.keys) == 1 else group.rows_of(key, length)
        return State(kv, self._recurrent_of(key), length)

    def _recurrent_of(self, key: int) -> list[Recurrent]:
        at = self._rows.index(key)
        if len(self._rows) == 1:
            return self._recurrent
        return [layer.row(at) for layer in self._recurrent]


def _partition(lengths: dict[int, int]) -> Iterable[tuple[int, ...]]:
    """Groups of keys of like length, in the order of joining within each."""
    rest = sorted(lengths, key=lambda key: lengths[key], reverse=True)
    while rest:
        longest = lengths[rest[0]]
        near = {key for key in rest if 2 * lengths[key] >= longest or longest <= _SMALL}
        yield tuple(key for key in lengths if key in near)
        rest = [key for key in rest if key not in near]


@dataclass(frozen=True, slots=True)
class Members:
    """Sequences that share one buffer, all ending at its last column in use.

    Attributes:
        rows: the buffer.
        at: which of its sequences, in the order wanted; None for all of them.
    """

    rows: KvRows
    at: Sequence[int] | None = None


def merge(parts: Sequence[Members], length: int) -> KvRows:
    """One buffer for the sequences of ``parts``, in order, all ending at column ``length``; lazy.

    No sequence is longer than that: what lies further left in its old buffer is padding. A single buffer that
    already has this form is returned as it is.
    """
    first = parts[0]
    if len(parts) == 1 and first.at is None and first.rows.length == length:
        return first.rows
    room = capacity_for(length) - length
    if first.rows.length == length and STEP // 4 <= first.rows.capacity - length < room:
        room = first.rows.capacity - length  # the first are often the most, and can be taken as they stand
    stacked = [
        mx.concatenate(list(buffers)) if len(buffers) > 1 else buffers[0]
        for buffers in zip(*(_moved(part, length, room) for part in parts), strict=True)
    ]
    return KvRows(first.rows.layout, tuple(stacked), length)


def _moved(part: Members, length: int, room: int) -> Buffers:
    """The buffers of ``part`` with ``length`` columns in use and ``room`` behind them."""
    buffers, at = part.rows.moved(length, room), part.at
    return buffers if at is None else tuple(side[mx.array(list(at))] for side in buffers)
