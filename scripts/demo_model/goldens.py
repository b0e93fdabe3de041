"""Greedy continuations of 20 held-out prompts by transformers in float32: what the server's own forward pass
must write.

python goldens.py        writes tests/goldens/demo_model.json
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dataset import DEMO
from mixture import HELD_OUT, held_out

OUT = Path(__file__).parents[2] / "tests" / "goldens" / "demo_model.json"
N_CONVERSATIONS, N_NEW = 20, 64


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    conversations: list[dict[str, Any]] = []
    skills = list(HELD_OUT)
    for i in range(N_CONVERSATIONS):
        skill, thinking = skills[i % len(skills)], i % 2 == 1
        c = held_out(skill, 1000 + i, thinking)
        last = max(k for k, m in enumerate(c.messages) if m["role"] == "user")
        prompt = tokenizer.apply_chat_template(
            c.messages[: last + 1],
            tools=c.tools or None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=N_NEW
            )
        greedy = out[0, ids.shape[1] :].tolist()
        conversations.append(
            {"skill": skill, "thinking": thinking, "prompt_ids": ids[0].tolist(), "greedy_ids": greedy}
        )
        print(f"{skill}: {ids.shape[1]} ids, {tokenizer.decode(greedy)!r}", flush=True)
    digest = hashlib.sha256((DEMO / "model.safetensors").read_bytes()).hexdigest()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in conversations)
    OUT.write_text(f'{{"model_sha256": "{digest}", "conversations": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
