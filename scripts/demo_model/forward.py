"""Qwen3_5ForCausalLM's forward pass for training: the library's parameters and mathematics over packed rows.

The library's own path leaks state from one conversation of a row into the next and runs at a sixth of this
speed. `check_forward.py` compares the two, conversation by conversation, loss and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from gdn import CHUNK, FORGET, Scan, UnitLowerInverse, combine, prepare, read

Attend = Callable[[Tensor, Tensor, Tensor, "Rows"], Tensor]


class Rows:
    """A batch's layout: where each conversation starts, as masks, rotary angles and cumulative lengths."""

    def __init__(self, position: Tensor, theta: float, rotary: int) -> None:
        self.n_rows, self.length = position.shape
        self.position = position
        flat = position.reshape(-1)
        starts = torch.nonzero(flat == 0).reshape(-1).to(torch.int32)
        self.cumulative = torch.cat([starts, starts.new_tensor([flat.numel()])])
        self.longest = self.length
        inverse = 1.0 / theta ** (torch.arange(0, rotary, 2, device=position.device).float() / rotary)
        angles = flat.float()[:, None] * inverse
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos(), angles.sin()  # [T, rotary]


def linear(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return F.linear(x.to(dtype), weight.to(dtype))


def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight)


def chunked(x: Tensor, n_rows: int, n_heads: int) -> Tensor:
    """[R * L, H * D] -> [N, R * H, C, D]"""
    x = x.reshape(n_rows, -1, CHUNK, n_heads, x.shape[-1] // n_heads)
    return x.permute(1, 0, 3, 2, 4).reshape(x.shape[1], n_rows * n_heads, CHUNK, -1)


def gdn_before(
    x: Tensor, w: dict[str, Tensor], position: Tensor, n_heads: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Norm, projections, convolution, and the chunked q, k, v, g, beta with all that needs no scan."""
    n_rows, length = position.shape
    h = norm(x, w["input_layernorm.weight"])
    mixed = linear(h, w["linear_attn.in_proj_qkv.weight"], dtype)
    z = linear(h, w["linear_attn.in_proj_z.weight"], dtype)
    a = linear(h, w["linear_attn.in_proj_a.weight"], dtype).float()
    b = linear(h, w["linear_attn.in_proj_b.weight"], dtype).float()
    rows = mixed.reshape(n_rows, length, -1)
    taps = w["linear_attn.conv1d.weight"].squeeze(1)  # [channels, 4], the last tap is the token itself
    out = rows * taps[:, -1]
    for back in range(1, taps.shape[1]):
        earlier = F.pad(rows, (0, 0, back, 0))[:, :length] * (position >= back)[..., None]
        out = out + earlier * taps[:, -1 - back]
    q, k, v = F.silu(out.float()).reshape(n_rows * length, -1).chunk(3, -1)
    q, k, v = (chunked(t, n_rows, n_heads) for t in (q, k, v))
    q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * q.shape[-1] ** -0.5
    k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
    g = -w["linear_attn.A_log"].exp() * F.softplus(a + w["linear_attn.dt_bias"])
    g = torch.where((position == 0).reshape(-1, 1), FORGET, g)
    g = chunked(g, n_rows, n_heads).squeeze(-1)
    beta = chunked(b.sigmoid(), n_rows, n_heads).squeeze(-1)
    return q, k, v, beta, z, *prepare(q, k, g, beta)


def mlp(x: Tensor, w: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    h = norm(x, w["post_attention_layernorm.weight"])
    gate = F.silu(linear(h, w["mlp.gate_proj.weight"], dtype)) * linear(h, w["mlp.up_proj.weight"], dtype)
    return x + linear(gate, w["mlp.down_proj.weight"], dtype).float()


def gdn_after(
    x: Tensor,
    w: dict[str, Tensor],
    q: Tensor,
    qk: Tensor,
    total: Tensor,
    states: Tensor,
    values: Tensor,
    z: Tensor,
    n_rows: int,
    n_heads: int,
    dtype: torch.dtype,
) -> Tensor:
    out = read(q, qk, total, states, values)  # [N, R * H, C, D]
    n_chunks, _, chunk, size = out.shape
    out = (
        out.reshape(n_chunks, n_rows, n_heads, chunk, size).permute(1, 0, 3, 2, 4).reshape(-1, n_heads, size)
    )
    out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6) * w["linear_attn.norm.weight"]
    out = out.reshape(out.shape[0], -1) * F.silu(z.float())
    return mlp(x + linear(out, w["linear_attn.out_proj.weight"], dtype).float(), w, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the leading part of each head, x [T, heads, D]."""
    n = cos.shape[-1]
    turned, rest = x[..., :n], x[..., n:]
    half = torch.cat([-turned[..., n // 2 :], turned[..., : n // 2]], -1)
    return torch.cat([turned * cos[:, None] + half * sin[:, None], rest], -1)


def attention_before(
    x: Tensor, w: dict[str, Tensor], cos: Tensor, sin: Tensor, n_heads: int, n_kv: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    h = norm(x, w["input_layernorm.weight"])
    q, gate = linear(h, w["self_attn.q_proj.weight"], dtype).reshape(h.shape[0], n_heads, -1).chunk(2, -1)
    k = linear(h, w["self_attn.k_proj.weight"], dtype).reshape(h.shape[0], n_kv, -1)
    v = linear(h, w["self_attn.v_proj.weight"], dtype).reshape(h.shape[0], n_kv, -1)
    q = rotate(norm(q, w["self_attn.q_norm.weight"]), cos, sin).to(dtype)
    k = rotate(norm(k, w["self_attn.k_norm.weight"]), cos, sin).to(dtype)
    return q, k, v.contiguous(), gate


def attention_after(x: Tensor, w: dict[str, Tensor], out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
    out = (out.float() * gate.float().sigmoid()).reshape(x.shape[0], -1)
    return mlp(x + linear(out, w["self_attn.o_proj.weight"], dtype).float(), w, dtype)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
    """Plain attention with a mask of same conversation and not later: for the CPU and as the reference."""
    start = (
        torch.arange(rows.length, device=q.device) - rows.position
    )  # [R, L], the conversation's first index
    index = torch.arange(rows.length, device=q.device)
    mask = (start[:, :, None] == start[:, None, :]) & (index[:, None] >= index[None, :])
    groups = q.shape[1] // k.shape[1]
    q, k, v = (t.reshape(rows.n_rows, rows.length, t.shape[1], -1).transpose(1, 2) for t in (q, k, v))
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
    return out.transpose(1, 2).reshape(rows.n_rows * rows.length, q.shape[1], -1)


def attend_flash(q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
    """Flash attention over conversations of different lengths."""
    return torch.ops.aten._flash_attention_forward(
        q, k, v, rows.cumulative, rows.cumulative, rows.longest, rows.longest, 0.0, True, False
    )[0]


class PackedForward:
    """The forward pass over the parameters of a `Qwen3_5ForCausalLM`."""

    def __init__(
        self,
        model: Qwen3_5ForCausalLM,
        dtype: torch.dtype,
        attend: Attend = attend_masked,
        compiled: bool = False,
    ) -> None:
        self.config: Any = model.config
        self.dtype, self.attend = dtype, attend
        self.embedding = model.model.embed_tokens.weight
        self.final_norm = model.model.norm.weight
        self.layers = [dict(layer.named_parameters()) for layer in model.model.layers]
        wrap: Callable[[Any], Any] = (
            (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        )
        self.gdn_before, self.gdn_after, self.combine = wrap(gdn_before), wrap(gdn_after), wrap(combine)
        self.attention_before, self.attention_after = wrap(attention_before), wrap(attention_after)

    def rows(self, position: Tensor) -> Rows:
        c = self.config
        return Rows(
            position,
            c.rope_parameters["rope_theta"],
            int(c.head_dim * c.rope_parameters["partial_rotary_factor"]),
        )

    def hidden(self, ids: Tensor, rows: Rows) -> Tensor:
        """Final normed hidden states [T, D] of ids [R, L]."""
        c = self.config
        x = F.embedding(ids.reshape(-1), self.embedding)
        for kind, w in zip(c.layer_types, self.layers, strict=True):
            if kind == "linear_attention":
                n = c.linear_num_value_heads
                q, k, v, beta, z, a, qk, total = self.gdn_before(x, w, rows.position, n, self.dtype)
                states, values = Scan.apply(*self.combine(UnitLowerInverse.apply(a), k, v, beta, total))
                x = self.gdn_after(x, w, q, qk, total, states, values, z, rows.n_rows, n, self.dtype)
            else:
                q, k, v, gate = self.attention_before(
                    x, w, rows.cos, rows.sin, c.num_attention_heads, c.num_key_value_heads, self.dtype
                )
                x = self.attention_after(x, w, self.attend(q, k, v, rows), gate, self.dtype)
        return norm(x, self.final_norm)

    def logits(self, ids: Tensor, position: Tensor, where: Tensor) -> Tensor:
        """Logits at flat positions `where` only: most tokens are not learnt."""
        hidden = self.hidden(ids, self.rows(position))
        return linear(hidden[where], self.embedding, self.dtype).float()
