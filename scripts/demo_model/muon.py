"""Muon: momentum whose step is made orthogonal. Matrices of one shape are stacked, so that a step is a few
products."""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonal(x: Tensor) -> Tensor:
    """The nearest orthogonal matrices of a stack, by five Newton-Schulz steps of a quintic (Jordan et al.,
    2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    def __init__(self, parameters: list[Tensor], momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        shapes = sorted({tuple(p.shape) for p in parameters})
        self.stacks = [[p for p in parameters if tuple(p.shape) == shape] for shape in shapes]
        self.buffers = [
            torch.zeros(len(stack), *stack[0].shape, device=stack[0].device) for stack in self.stacks
        ]
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for stack, buffer in zip(self.stacks, self.buffers, strict=True):
            gradient = torch.stack([p.grad for p in stack])
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp_(buffer, self.momentum))
            rows, columns = stack[0].shape
            scale = rate * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(stack, 1 - rate * self.weight_decay)
            torch._foreach_add_(stack, list(update.unbind()), alpha=-scale)
