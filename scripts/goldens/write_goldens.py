"""Writes the reference logits in tests/goldens with transformers' own Qwen3.5 in torch.

Run by hand when the tiny checkpoints change; torch is no dependency of this project::

    python3 -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch transformers safetensors numpy
    /tmp/goldens/bin/python -m scripts.goldens.write_goldens

The weights come from ``tests/fakes/tiny.py`` and go into transformers' modules by name (strictly), not
through any loader, so a fault in a layout cannot hide on both sides.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

from tests.fakes import tiny

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens"
N_TOKENS = 150  # two whole GDN chunks and a part of a third


def main() -> None:
    """One file a shape: the ids and the logits at every position."""
    for name, shape in (("dense", tiny.DENSE), ("moe", tiny.MOE)):
        fields = tiny.text_config(shape)
        moe = shape.n_experts > 0
        config = (Qwen3_5MoeTextConfig if moe else Qwen3_5TextConfig)(**fields)
        model = (Qwen3_5MoeForCausalLM if moe else Qwen3_5ForCausalLM)(config).to(torch.float32).eval()
        arrays = {key: torch.from_numpy(w) for key, w in tiny.weights(shape).items()}
        if shape.tied:
            arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
        model.load_state_dict(arrays, strict=True)
        ids = np.random.default_rng(7).integers(0, shape.vocab, N_TOKENS).astype(np.uint32)
        ids[60:100] = ids[60:64].tolist() * 10  # repeated text makes keys that resemble each other
        with torch.no_grad():
            logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
        np.savez_compressed(OUT / f"{name}.npz", ids=ids, logits=logits.astype(np.float32))
        print(f"{name}: logits {logits.shape}, largest {np.abs(logits).max():.3f}")


if __name__ == "__main__":
    main()
