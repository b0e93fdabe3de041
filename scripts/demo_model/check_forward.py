"""Compares forward.py with transformers on packed conversations, loss and gradients, in float32 on the
CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from architecture import make_config, make_model
from forward import PackedForward

LENGTHS = ((5, 70, 64, 53), (1, 2, 3, 186))  # conversations a row; each row is 192 long


def main() -> None:
    token_ids = {"<|endoftext|>": 4087, "<|im_end|>": 4089}
    model = make_model(make_config(token_ids))
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 4000, (2, 192), generator=generator)
    ids[:, 100:140] = ids[:, :1]  # repetitive text makes correlated keys
    position = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in LENGTHS])
    at = torch.nonzero(position.reshape(-1)[1:] > 0).reshape(-1)
    targets = ids.reshape(-1)[at + 1]
    ours = F.cross_entropy(PackedForward(model, torch.float32).logits(ids, position, at), targets)
    ours.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    total, n = torch.zeros(()), 0
    for r, row in enumerate(LENGTHS):
        start = 0
        for length in row:
            piece = ids[r : r + 1, start : start + length]
            start += length
            if length > 1:
                logits = model(piece).logits
                total = total + F.cross_entropy(logits[0, :-1], piece[0, 1:], reduction="sum")
                n += length - 1
    theirs = total / n
    theirs.backward()
    worst = max(
        (gradients[name] - p.grad).norm() / (p.grad.norm() + 1e-12) for name, p in model.named_parameters()
    )
    print(
        f"loss {ours.item():.6f} and {theirs.item():.6f}; worst relative difference of a gradient {worst:.1e}"
    )
    assert abs(ours.item() - theirs.item()) < 1e-5
    assert worst < 1e-3


if __name__ == "__main__":
    main()
