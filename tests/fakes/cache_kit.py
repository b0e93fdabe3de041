"""What the cache's tests have in common: a model's metadata, a clock turned by hand, a store."""

from __future__ import annotations

from cache.disk.tier import DiskTier
from cache.planner import AdapterId, CrossTurnPrefixMetadata, SlotKey
from cache.ring import RingLimits
from cache.store import Store
from tests.fakes.fake_codec import FakeCodec
from tests.fakes.fake_state import FakeState, Geometry

METADATA = CrossTurnPrefixMetadata(
    model_fingerprint=1,
    tokenizer_fingerprint=2,
    adapter_id=AdapterId.BASE,
    vocab_size=1000,
    max_cache_len=4096,
    kv_dtype="float32",
    rope_theta=1e7,
    partial_rotary_factor=None,
    layer_types=("linear_attention", "full_attention"),
    chat_template_version=1,
)

SLOT = SlotKey.for_session(None, "a")
OTHER = SlotKey.for_session(None, "b")

UNIT = Geometry(row_bytes=10, snapshot_bytes=100, row_step=1)
"""Small round numbers, for counting bytes by hand."""

DEMO = Geometry(row_bytes=3072, snapshot_bytes=9 * (4 * 64 * 64 * 4 + 3 * 768 * 4), row_step=256)
"""What the demo model's states weigh in float32."""


class FakeClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_store(
    *,
    budget_bytes: int = 10**12,
    geometry: Geometry = UNIT,
    ring_limits: RingLimits | None = None,
    share_prefixes: bool = True,
    share_histories: bool = False,
    clock: FakeClock | None = None,
    max_entries_per_slot: int = 128,
    disk: DiskTier | None = None,
) -> Store:
    """A store over fake states; by default nothing is ever evicted or thinned for its bytes."""
    return Store(
        METADATA,
        budget_bytes=budget_bytes,
        ring_limits=ring_limits or RingLimits(),
        share_prefixes=share_prefixes,
        share_histories=share_histories,
        clock=clock or FakeClock(),
        new_state=lambda: FakeState(geometry),
        max_entries_per_slot=max_entries_per_slot,
        disk=disk,
        codec=FakeCodec(geometry),
    )
