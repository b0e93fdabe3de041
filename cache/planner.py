"""Decides from token ids and metadata alone whether a retained prefix can be reused, and from where.

Owns no state and no buffers. Three answers exist. The entry is a whole prefix of the prompt and its
state stands exactly at its end: :class:`ExactAppend`. The prompt leaves the entry midway, but a
checkpoint was kept at or before that point: :class:`ReplayFromCheckpoint`, the deepest one wins.
Anything else: :class:`FullRefill`. Declining is always right; claiming one id too many never is.

At least one token is always left to feed, since logits come only from feeding: a checkpoint at the
prompt's own length is passed over for a shallower one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import ClassVar

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class CrossTurnSlotId:
    """Names one private memory. Two slots never share state, so sessions cannot read each other."""

    value: int
    DEFAULT: ClassVar[CrossTurnSlotId]

    @classmethod
    def for_session(cls, tenant: str | None, session_key: str | None) -> CrossTurnSlotId:
        """The slot of ``session_key`` within ``tenant``.

        Without either it is :attr:`DEFAULT`; a tenant without a key has a default slot of its own,
        so that keyless requests of two tenants never meet.
        """
        if tenant is None and session_key is None:
            return cls.DEFAULT
        digest = blake2b(digest_size=8, person=b"crossturn-slot")
        for part in (tenant, session_key):
            raw = None if part is None else part.encode("utf-8", "surrogatepass")
            # Length first: ("ab", "c") and ("a", "bc") must not meet; -1 is no string's length.
            digest.update((-1 if raw is None else len(raw)).to_bytes(8, "little", signed=True))
            digest.update(raw or b"")
        return cls(int.from_bytes(digest.digest(), "little") or 1)

    def __str__(self) -> str:
        return f"{self.value:016x}"


CrossTurnSlotId.DEFAULT = CrossTurnSlotId(0)


@dataclass(frozen=True, slots=True)
class SlotKey:
    """Whose memory it is: one slot of one tenant.

    Nothing is found, copied or deleted by a slot's id alone: ids are no secret, they stand in replies
    and logs.
    """

    tenant: str | None
    id: CrossTurnSlotId
    PRELOADED: ClassVar[SlotKey]

    @classmethod
    def for_session(cls, tenant: str | None, session_key: str | None) -> SlotKey:
        """The slot of ``session_key`` within ``tenant``."""
        return cls(tenant, CrossTurnSlotId.for_session(tenant, session_key))

    def __str__(self) -> str:
        return str(self.id)


SlotKey.PRELOADED = SlotKey("(preloaded)", CrossTurnSlotId.DEFAULT)
"""What the operator loaded at the start: its system and tools blocks are there for every tenant."""


@dataclass(frozen=True, slots=True)
class AdapterId:
    """Names the LoRA adapter in force by its content (64 bits); BASE is the model alone."""

    value: int
    BASE: ClassVar[AdapterId]


AdapterId.BASE = AdapterId(0)


@dataclass(frozen=True, slots=True)
class CrossTurnPrefixMetadata:
    """All that must be equal for a retained state to mean what a fresh prefill would give.

    Attributes:
        model_fingerprint: 64 bits over the weights' content and the config.
        tokenizer_fingerprint: 64 bits over the tokenizer.
        adapter_id: the adapter, by content.
        vocab_size: rows of the embedding.
        max_cache_len: the longest context, in tokens.
        kv_dtype: how KV rows are stored, e.g. ``float32``, ``bfloat16``, ``q8``.
        rope_theta: base of the rotary embedding.
        partial_rotary_factor: share of a head that is rotated; None where the config has none.
        layer_types: which layers attend and which recur, in order.
        chat_template_version: 64 bits over the chat template.
        device: the kind of device that computed it: two of them agree to rounding errors only.
    """

    model_fingerprint: int
    tokenizer_fingerprint: int
    adapter_id: AdapterId
    vocab_size: int
    max_cache_len: int
    kv_dtype: str
    rope_theta: float
    partial_rotary_factor: float | None
    layer_types: tuple[str, ...]
    chat_template_version: int
    device: str = ""

    def first_difference(self, other: CrossTurnPrefixMetadata) -> str | None:
        """The name of the first field that differs, or None when the two are equal."""
        for field in fields(self):
            if getattr(self, field.name) != getattr(other, field.name):
                return field.name
        return None


@dataclass(frozen=True, slots=True)
class CrossTurnPrefixEntry:
    """One retained prefix as the planner sees it.

    Attributes:
        slot_id: whose memory it is.
        metadata: what its state was computed with.
        token_ids: uint32 [n], the ids that were fed.
        represented_len: tokens that the KV rows stand for.
        gdn_snapshot_len: tokens that the recurrent state stands for.
    """

    slot_id: CrossTurnSlotId
    metadata: CrossTurnPrefixMetadata
    token_ids: TokenIds
    represented_len: int
    gdn_snapshot_len: int


@dataclass(frozen=True, slots=True)
class FullRefill:
    """Nothing usable overlaps: start from an empty state."""


@dataclass(frozen=True, slots=True)
class ExactAppend:
    """The entry is a prefix of the prompt and its state stands at its end: continue it."""


@dataclass(frozen=True, slots=True)
class ReplayFromCheckpoint:
    """Go back to the checkpoint at ``checkpoint_len`` tokens and feed on from there."""

    checkpoint_len: int


PrefixReuseMode = FullRefill | ExactAppend | ReplayFromCheckpoint


@dataclass(frozen=True, slots=True)
class PrefixRestorePlan:
    """What to restore and where the part to feed begins.

    Attributes:
        mode: how the entry is used.
        shared_token_prefix_len: ids that entry and prompt have in common from the start.
        reusable_len: ids that need not be fed; never more than the shared ones.
        suffix_start: first id to feed (equals ``reusable_len``).
        suffix_len: ids to feed; at least one unless the prompt is empty.
        old_represented_len: the entry's length before it is used; 0 without an entry.
        mismatch: the metadata field that ruled the entry out, or None.
    """

    mode: PrefixReuseMode
    shared_token_prefix_len: int
    reusable_len: int
    suffix_start: int
    suffix_len: int
    old_represented_len: int
    mismatch: str | None = None


def longest_common_token_prefix(a: TokenIds, b: TokenIds) -> int:
    """How many ids ``a`` [n] and ``b`` [m] have in common from the start."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n


def plan_prefix_reuse(
    entry: CrossTurnPrefixEntry | None,
    metadata: CrossTurnPrefixMetadata,
    new_prompt_ids: TokenIds,
    sparse_checkpoint_lens: Iterable[int],
) -> PrefixRestorePlan:
    """How, or whether, to reuse ``entry`` for ``new_prompt_ids`` [n].

    Args:
        entry: what is retained; None plans a full refill.
        metadata: of the request; any field that differs rules the entry out.
        new_prompt_ids: uint32 [n].
        sparse_checkpoint_lens: positions whose recurrent states the entry still owns, in any order.
    """
    n_prompt = len(new_prompt_ids)
    if entry is None:
        return _plan(FullRefill(), n_prompt, shared=0, reusable=0, old=0)
    old = entry.represented_len
    mismatch = entry.metadata.first_difference(metadata)
    if mismatch is not None or n_prompt == 0:
        return _plan(FullRefill(), n_prompt, shared=0, reusable=0, old=old, mismatch=mismatch)

    shared = longest_common_token_prefix(entry.token_ids, new_prompt_ids)
    if 0 < shared < n_prompt and shared == old == entry.gdn_snapshot_len:
        return _plan(ExactAppend(), n_prompt, shared=shared, reusable=shared, old=old)

    deepest = min(shared, n_prompt - 1)
    checkpoint_len = max((n for n in sparse_checkpoint_lens if 0 < n <= deepest), default=0)
    if checkpoint_len > 0:
        mode = ReplayFromCheckpoint(checkpoint_len)
        return _plan(mode, n_prompt, shared=shared, reusable=checkpoint_len, old=old)
    return _plan(FullRefill(), n_prompt, shared=shared, reusable=0, old=old)


def _plan(
    mode: PrefixReuseMode, n_prompt: int, *, shared: int, reusable: int, old: int, mismatch: str | None = None
) -> PrefixRestorePlan:
    return PrefixRestorePlan(
        mode=mode,
        shared_token_prefix_len=shared,
        reusable_len=reusable,
        suffix_start=reusable,
        suffix_len=n_prompt - reusable,
        old_represented_len=old,
        mismatch=mismatch,
    )


def checkpoint_survives_save(length: int, common_prefix_len: int, new_represented_len: int) -> bool:
    """Whether a checkpoint at ``length`` stays valid when its entry is saved anew.

    It must not be empty (that is a full refill), must lie within the ``common_prefix_len`` ids that
    the old and the new history share (rows past them were overwritten), and must lie before the new
    end, where the live state already stands.
    """
    return 0 < length <= common_prefix_len and length < new_represented_len


class TokenBuffer:
    """Token ids that grow at the end and can be cut: uint32 [n]."""

    def __init__(self, ids: TokenIds | Iterable[int] = ()) -> None:
        first = np.array(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.uint32)
        self._ids: TokenIds = first
        self._n = len(first)

    def __len__(self) -> int:
        return self._n

    @property
    def view(self) -> TokenIds:
        """The ids, without a copy; valid until the buffer is next changed."""
        return self._ids[: self._n]

    @property
    def n_bytes(self) -> int:
        """Bytes held, spare room included."""
        return int(self._ids.nbytes)

    def append(self, token: int) -> bool:
        """Add one id; returns whether that took more memory."""
        has_grown = self._n == len(self._ids) and self._reserve(1)
        self._ids[self._n] = token
        self._n += 1
        return has_grown

    def extend(self, ids: TokenIds | Iterable[int]) -> None:
        """Add ids in order."""
        new = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, dtype=np.uint32)
        self._reserve(len(new))
        self._ids[self._n : self._n + len(new)] = new
        self._n += len(new)

    def truncate(self, n: int) -> None:
        """Forget the ids from ``n`` on."""
        assert 0 <= n <= self._n
        self._n = n

    def copy(self, n: int) -> TokenBuffer:
        """A buffer of its own with the first ``n`` ids."""
        return TokenBuffer(self.view[:n])

    def _reserve(self, n_more: int) -> bool:
        needed = self._n + n_more
        if needed <= len(self._ids):
            return False
        grown = np.empty(max(needed, len(self._ids) * 5 // 4, 64), dtype=np.uint32)
        grown[: self._n] = self.view
        self._ids = grown
        return True
