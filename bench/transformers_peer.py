"""transformers over the shapes of ``bench/sizes.py``, on a GPU: random bfloat16 weights, its torch paths.

    python bench/transformers_peer.py --shape 0.8B

Needs torch and transformers, and no MLX. Prints a line for each figure.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from shape_table import SHAPES
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

N_STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="0.8B", choices=[name for name in SHAPES if "A3B" not in name])
    parser.add_argument("--companies", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--company-context", type=int, default=4096)
    options = parser.parse_args()
    raw = {k: v for k, v in SHAPES[options.shape].items() if k != "model_type"}
    kinds = [
        "full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(raw["num_hidden_layers"])
    ]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**raw, layer_types=kinds)).to(torch.bfloat16).eval()
    with torch.inference_mode():
        for n in (1024, 8192):
            ids = torch.randint(0, raw["vocab_size"], (1, n), device="cuda")
            seconds = timed(lambda ids=ids: model(ids, use_cache=True, logits_to_keep=1))
            print(f"{options.shape}  transformers: prefill of {n}  {n / seconds:.0f} tok/s", flush=True)
        for size in options.companies:
            ids = torch.randint(0, raw["vocab_size"], (size, options.company_context), device="cuda")
            cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
            seconds = decode_seconds(model, cache, size)
            print(
                f"{options.shape}  transformers: decode, {size} sequences of {options.company_context}  "
                f"{1e3 * seconds:.2f} ms, {size / seconds:.0f} tok/s",
                flush=True,
            )


def decode_seconds(model: Qwen3_5ForCausalLM, cache: object, size: int) -> float:
    """Seconds a greedy step takes."""
    tokens = torch.zeros((size, 1), dtype=torch.long, device="cuda")
    start = 0.0
    for i in range(N_STEPS + 4):
        if i == 4:
            torch.cuda.synchronize()
            start = time.perf_counter()
        tokens = model(tokens, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / N_STEPS


def timed(work: Callable[[], object], n_runs: int = 3) -> float:
    """Median seconds, after one run that is not counted."""
    seconds = []
    for _ in range(n_runs + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])[n_runs // 2]


if __name__ == "__main__":
    main()
