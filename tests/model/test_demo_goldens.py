"""The shipped demo model: our forward pass writes, token for token, what transformers wrote in float32."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import model as model_package
from model.checkpoint.load import load
from model.forward import Forward

DEMO = Path(model_package.__file__).parent / "demo"
GOLDENS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "goldens" / "demo_model.json").read_text())
CONVERSATIONS: list[dict[str, Any]] = GOLDENS["conversations"]


@pytest.fixture(scope="module")
def demo() -> Forward:
    return load(DEMO, dtype="float32")


def greedy(demo: Forward, prompt_ids: list[int], n_tokens: int) -> list[int]:
    state, feed, written = demo.new_state(), np.array(prompt_ids, dtype=np.uint32), []
    for _ in range(n_tokens):
        written.append(int(mx.argmax(demo.prefill(state, feed).logits)))
        feed = np.array(written[-1:], dtype=np.uint32)
    return written


def test_the_goldens_are_of_the_shipped_weights() -> None:
    weights = (DEMO / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == GOLDENS["model_sha256"], "run scripts/demo_model/goldens.py"
    assert len(CONVERSATIONS) == 20


@pytest.mark.parametrize("case", CONVERSATIONS, ids=lambda c: f"{c['skill']}, {len(c['prompt_ids'])} ids")
def test_greedy_tokens_are_those_of_transformers(demo: Forward, case: dict[str, Any]) -> None:
    assert greedy(demo, case["prompt_ids"], len(case["greedy_ids"])) == case["greedy_ids"]


def test_the_checkpoint_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 16 * 2**20
