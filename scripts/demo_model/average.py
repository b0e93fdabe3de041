"""Weights halfway between two checkpoints: what a short pass taught, without most of what it unlearnt.

python average.py before.safetensors after.safetensors out.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    before, after = load_file(args.before), load_file(args.after)
    halfway = {k: (0.5 * w.float() + 0.5 * after[k].float()).to(w.dtype) for k, w in before.items()}
    with safe_open(args.before, "pt") as file:
        save_file(halfway, args.out, metadata=file.metadata())


if __name__ == "__main__":
    main()
