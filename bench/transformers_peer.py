"""transformers over the shapes of ``bench/sizes.py``, on a GPU: random bfloat16 weights, its torch paths.

    python bench/transformers_peer.py --shape 0.8B --out transformers-0.8b.json

Needs torch and transformers, and no MLX. Prints a line for each figure, and writes ``--out`` after each. The
``tiny`` shapes run with ``--device cpu`` too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import Figures, OutOfTimeError
from shape_table import SHAPES
from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
)

N_STEPS = 20


def main() -> None:
    """Print a line for each figure, and write them all as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="0.8B", choices=SHAPES)
    parser.add_argument("--prompts", type=int, nargs="*", default=[1024, 8192])
    parser.add_argument("--companies", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--company-context", type=int, default=4096)
    parser.add_argument("--seconds", type=float, help="start no figure later than so long after the start")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    figures = Figures(options.out, options.seconds)

    def tell(what: str, value: float, unit: str) -> None:
        figures.tell(f"{options.shape} 16 bits", f"transformers: {what}", value, unit)

    torch.manual_seed(0)
    try:
        with torch.inference_mode(), torch.device(options.device):
            measure(random_model(options.shape), options, tell)
    except OutOfTimeError as stop:
        print(stop, flush=True)


def random_model(shape: str) -> Any:
    """A model of a shape with random weights, made in bfloat16 on the default device: 35B take 70 GB."""
    raw = {k: v for k, v in SHAPES[shape].items() if k != "model_type"}
    kinds = [
        "full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(raw["num_hidden_layers"])
    ]
    torch.set_default_dtype(torch.bfloat16)
    try:
        if "num_experts" in raw:
            return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**raw, layer_types=kinds)).eval()
        return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**raw, layer_types=kinds)).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def measure(model: Any, options: argparse.Namespace, tell: Callable[[str, float, str], None]) -> None:
    """Prefill, then decode over company."""
    vocabulary = SHAPES[options.shape]["vocab_size"]
    tell("weights", sum(w.nbytes for w in model.parameters()) / 1e9, "GB")
    for n in options.prompts:
        ids = torch.randint(0, vocabulary, (1, n))
        seconds = timed(lambda ids=ids: model(ids, use_cache=True, logits_to_keep=1))
        tell(f"prefill of {n}", n / seconds, "tok/s")
    for size in options.companies:
        ids = torch.randint(0, vocabulary, (size, options.company_context))
        cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
        seconds = decode_seconds(model, cache, size)
        if size == 1:
            tell(f"decode after {options.company_context}", 1e3 * seconds, "ms")
        tell(f"decode, {size} sequences of {options.company_context}", size / seconds, "tok/s")


def decode_seconds(model: Any, cache: object, size: int) -> float:
    """Seconds a greedy step takes."""
    tokens = torch.zeros((size, 1), dtype=torch.long)
    start = 0.0
    for i in range(N_STEPS + 4):
        if i == 4:
            wait()
            start = time.perf_counter()
        tokens = model(tokens, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
    wait()
    return (time.perf_counter() - start) / N_STEPS


def timed(work: Callable[[], object], n_runs: int = 3) -> float:
    """Median seconds, after one run that is not counted."""
    seconds = []
    for _ in range(n_runs + 1):
        wait()
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])[n_runs // 2]


def wait() -> None:
    """Until the GPU has done what was asked of it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
