"""What quantised keys and values change: logits over a text, token by token, against plain rows.

python bench/kv_error.py --model demo --text README.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sides import CROSSTURN, prepare_side

prepare_side(CROSSTURN)

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

from model.checkpoint.hub import resolve  # noqa: E402
from model.checkpoint.load import load  # noqa: E402
from model.forward import Forward  # noqa: E402
from model.text.tokenizer import TextTokenizer  # noqa: E402

N_FIRST = 200  # tokens read before the first compared position


def main() -> None:
    """Print one line for each width."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="directory, Hub name or demo")
    parser.add_argument("--text", type=Path, default=Path("README.md"))
    parser.add_argument("--positions", type=int, default=600)
    options = parser.parse_args()
    path = resolve(options.model)
    text = options.text.read_text(encoding="utf-8")
    ids = np.array(TextTokenizer.from_dir(path).encode(text), np.uint32)[: N_FIRST + options.positions]
    plain = logits_over(load(path), ids)
    for bits in (8, 4):
        found = logits_over(load(path, kv_bits=bits), ids)
        error = np.abs(found - plain).max() / np.abs(plain).max()
        same = (found.argmax(-1) == plain.argmax(-1)).mean()
        print(
            f"{bits} bits: largest error {error:.1%} of the largest logit, same likeliest token "
            f"{same:.1%}, KL divergence {divergence(plain, found):.4f}"
        )


def logits_over(model: Forward, ids: np.ndarray) -> np.ndarray:
    """Logits [n - N_FIRST, V] after each token from N_FIRST on, fed one by one."""
    state, batch = model.new_state(), model.new_batch()
    model.prefill(state, ids[:N_FIRST])
    batch.join(0, state)
    return np.stack([np.array(batch.step(mx.array([int(id_)], mx.uint32))[0]) for id_ in ids[N_FIRST:]])


def divergence(wanted: np.ndarray, found: np.ndarray) -> float:
    """Mean KL divergence of the distributions behind two sets of logits, in nats."""
    p, q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (wanted, found))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


if __name__ == "__main__":
    main()
