"""What it costs to move a conversation to another server, beside the prefill that it saves.

    python bench/travel.py --size 0.8B --tokens 30000
    python bench/travel.py --demo --tokens 8000

The conversation is prefilled, exported to a file, and imported into a store that knows nothing of it. The
next token's logits must be the same on both sides, bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from model.backend import prepare

prepare()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from random_model import forward_over, random_modules  # noqa: E402

from cache.boundaries import PromptShape  # noqa: E402
from cache.planner import AdapterId, CrossTurnPrefixMetadata, SlotKey  # noqa: E402
from cache.ring import RingLimits  # noqa: E402
from cache.store import Store  # noqa: E402
from cache.travel import unpack  # noqa: E402
from model.backend import detect  # noqa: E402
from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.codec import StateCodec  # noqa: E402
from model.forward import Forward  # noqa: E402

SLOT = SlotKey.for_session(None, "travels")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="0.8B", help="a model of this size with random weights")
    parser.add_argument("--demo", action="store_true", help="the demo model instead")
    parser.add_argument("--tokens", type=int, default=30_000)
    options = parser.parse_args()
    forward = load(resolve("demo")) if options.demo else forward_over(*random_modules(options.size, 16))
    forward.warm_up()
    ids = np.random.default_rng(0).integers(10, forward.config.vocab_size, options.tokens).astype(np.uint32)
    here, there = new_store(forward), new_store(forward)
    seconds = {}
    begun = time.perf_counter()
    prefilled(forward, here, ids)
    seconds["prefill"] = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "conversation"
        begun = time.perf_counter()
        export(here, file)
        seconds["export"] = time.perf_counter() - begun
        n_bytes = file.stat().st_size
        begun = time.perf_counter()
        with file.open("rb") as content:
            there.arrive(unpack(content, there.metadata, there.codec.layout), SLOT)
        seconds["import"] = time.perf_counter() - begun
    is_same = bool(mx.array_equal(next_logits(forward, here, ids), next_logits(forward, there, ids)))
    print(f"{options.tokens} tokens on {detect().name}: {n_bytes / 2**20:.0f} MiB")
    for name, took in seconds.items():
        print(f"  {name:8} {took:7.3f} s")
    moved = seconds["export"] + seconds["import"]
    print(
        f"  moving it takes {moved / seconds['prefill']:.2f} of its prefill; logits are the same: {is_same}"
    )


def new_store(forward: Forward) -> Store:
    """A store without a bound."""
    config = forward.config
    metadata = CrossTurnPrefixMetadata(
        model_fingerprint=1,
        tokenizer_fingerprint=1,
        adapter_id=AdapterId.BASE,
        vocab_size=config.vocab_size,
        max_cache_len=config.max_context,
        kv_dtype="any",
        rope_theta=config.rope_theta,
        partial_rotary_factor=config.partial_rotary_factor,
        layer_types=config.layer_types,
        chat_template_version=1,
        device=detect().kind,
    )
    return Store(
        metadata,
        budget_bytes=2**40,
        ring_limits=RingLimits(),
        share_prefixes=True,
        clock=time.monotonic,
        new_state=forward.new_state,
        codec=StateCodec(forward.new_state),
    )


def prefilled(forward: Forward, store: Store, ids: np.ndarray) -> None:
    """Put ``ids`` to rest in ``store``, with the checkpoints that a chat has."""
    shape = PromptShape(message_starts=(0, 2000), shared_points=(len(ids) - 2,), system_end=2000)
    choice = store.plan(SLOT, ids, shape)
    running = store.take(choice)
    for start in range(0, len(ids), forward.part_tokens):
        part = ids[start : start + forward.part_tokens]
        captures = [p for p in choice.captures if start < p <= start + len(part)]
        read = forward.prefill(running.state, part, capture_at=captures)  # type: ignore[arg-type]
        mx.eval(read.logits)
        running.ids.extend(part)
        for checkpoint in read.checkpoints:
            running.capture(checkpoint)
    store.save(running)


def export(store: Store, file: Path) -> None:
    """Write what ``store`` has at rest."""
    departure = store.depart(SLOT)
    assert departure is not None
    with file.open("wb") as out:
        while (piece := departure.read()) is not None:
            out.write(piece)
    store.departed(departure)


def next_logits(forward: Forward, store: Store, ids: np.ndarray) -> mx.array:
    """[V] after one more token than ``ids``, from what ``store`` remembers."""
    longer = np.append(ids, np.uint32(11))
    choice = store.plan(SLOT, longer)
    assert choice.plan.reusable_len == len(ids), choice.plan
    running = store.take(choice)
    return forward.prefill(running.state, longer[len(ids) :]).logits  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
