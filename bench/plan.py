"""What a plan takes: the comparison of a prompt's ids with those that are remembered.

    python bench/plan.py --ids 262144

For the three answers: the prompt goes on where memory ends, parts from it near the end with a checkpoint
before, or parts from it at once.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from cache.planner import (
    AdapterId,
    CrossTurnPrefixEntry,
    CrossTurnPrefixMetadata,
    CrossTurnSlotId,
    TokenIds,
    plan_prefix_reuse,
)

N_RUNS = 500


def main() -> None:
    """Print the median microseconds of each answer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, default=262_144, help="tokens of the prompt")
    options = parser.parse_args()
    prompt = np.random.default_rng(0).integers(0, 248_320, options.ids).astype(np.uint32)
    old = prompt[:-16].copy()
    for parts_at in (None, -64, 0):
        if parts_at is not None:
            old[parts_at] ^= 1
        mode, microseconds = median_of(entry_of(old), prompt, [options.ids // 2, options.ids - 4096])
        print(f"{mode:22} over {options.ids} ids: {microseconds:6.1f} µs")


def median_of(entry: CrossTurnPrefixEntry, prompt: TokenIds, checkpoints: list[int]) -> tuple[str, float]:
    """The mode and the median time of its plan."""
    seconds = []
    for _ in range(N_RUNS):
        start = time.perf_counter()
        plan = plan_prefix_reuse(entry, entry.metadata, prompt, checkpoints)
        seconds.append(time.perf_counter() - start)
    return type(plan.mode).__name__, 1e6 * float(np.median(seconds))


def entry_of(ids: TokenIds) -> CrossTurnPrefixEntry:
    """What is remembered of ``ids``, whole."""
    n = len(ids)
    metadata = CrossTurnPrefixMetadata(
        model_fingerprint=1,
        tokenizer_fingerprint=2,
        adapter_id=AdapterId.BASE,
        vocab_size=248_320,
        max_cache_len=n + 1,
        kv_dtype="bfloat16",
        rope_theta=1e7,
        partial_rotary_factor=0.25,
        layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention") * 6,
        chat_template_version=3,
    )
    return CrossTurnPrefixEntry(CrossTurnSlotId.DEFAULT, metadata, ids, n, gdn_snapshot_len=n)


if __name__ == "__main__":
    main()
