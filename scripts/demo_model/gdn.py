"""The gated delta rule for training, over whole rows at once.

Everything but one thin loop is a batched matrix product over all chunks of all rows and heads. The loop
carries the state from chunk to chunk with two products a chunk; its backward pass is written by hand, so that
autograd keeps no graph of it. Shapes: N chunks, B = rows x heads, C = 64 positions, K = key size, V = value
size; all float32."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
FORGET = -40.0  # log decay at a conversation's first token: exp(-40) leaves nothing of the row's previous one


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A, by substitution: a Neumann series loses all digits on
    repetitive text."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, a: Tensor) -> Tensor:
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
        inverse = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


class Scan(torch.autograd.Function):
    """V'_n = U_n - W_n S_n, S_{n+1} = d_n S_n + K_n^T V'_n; returns every S_n (chunk starts) and V'_n."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, u: Tensor, w: Tensor, k: Tensor, decay: Tensor
    ) -> tuple[Tensor, Tensor]:
        n_chunks, n_batch = u.shape[:2]
        states = u.new_empty(n_chunks + 1, n_batch, k.shape[-1], u.shape[-1])
        values = torch.empty_like(u)
        states[0].zero_()
        d = decay[..., None, None]
        for n in range(n_chunks):
            torch.baddbmm(u[n], w[n], states[n], alpha=-1, out=values[n])
            torch.baddbmm(states[n] * d[n], k[n].mT, values[n], out=states[n + 1])
        ctx.save_for_backward(w, k, decay, states, values)
        return states[:-1], values

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, d_states: Tensor, d_values: Tensor
    ) -> tuple[Tensor, ...]:
        w, k, decay, states, values = ctx.saved_tensors
        n_chunks = w.shape[0]
        after = torch.empty_like(states[1:])  # the gradient at S_{n+1}
        d_u = torch.empty_like(values)
        d = decay[..., None, None]
        after[n_chunks - 1].zero_()
        for n in range(n_chunks - 1, -1, -1):
            torch.baddbmm(d_values[n], k[n], after[n], out=d_u[n])
            if n:
                torch.baddbmm(
                    torch.addcmul(d_states[n], d[n], after[n]), w[n].mT, d_u[n], alpha=-1, out=after[n - 1]
                )
        d_w = -(d_u @ states[:-1].mT)
        d_k = values @ after.mT
        d_decay = (after * states[:-1]).sum((-1, -2))
        return d_u, d_w, d_k, d_decay


def prepare(q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From chunked q, k [N, B, C, K] and log decay g, beta [N, B, C]: A, the masked Q K^T, the cumulated log
    decay."""
    total = g.cumsum(-1)
    difference = total[..., :, None] - total[..., None, :]
    index = torch.arange(g.shape[-1], device=g.device)
    lower = index[:, None] >= index[None, :]
    decay = torch.where(lower, difference, -1e9).exp()
    a = (k @ k.mT) * decay * beta[..., None] * (index[:, None] > index[None, :])
    return a, (q @ k.mT) * decay, total


def combine(
    inverse: Tensor, k: Tensor, v: Tensor, beta: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the scan eats: U, W, the keys decayed to the chunk's end, the chunk's whole decay."""
    u = inverse @ (v * beta[..., None])
    w = inverse @ (k * (beta * total.exp())[..., None])
    return u, w, k * (total[..., -1:] - total).exp()[..., None], total[..., -1].exp()


def read(q: Tensor, qk: Tensor, total: Tensor, states: Tensor, values: Tensor) -> Tensor:
    return (q * total.exp()[..., None]) @ states + qk @ values
