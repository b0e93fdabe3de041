"""The operations of a layer in which devices differ. Each has a plain form in MLX's own functions, which a
device may replace.

Linear layers that read the same input are applied as one product. Decoding needs that: its launches cost
more than their arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from numpy.typing import NDArray

from model.layers.delta_rule import Chunked, DeltaRule
from model.state import KvRows

# A layer and its input [..., in] to its output [..., out].
Apply = Callable[[nn.Module, mx.array], mx.array]
Unary = Callable[[mx.array], mx.array]
Mask = mx.array | Literal["causal"] | None
# q [B, H, T, D], k and v [B, Hkv, S, D], scale, mask to [B, H, T, D]
Attend = Callable[[mx.array, mx.array, mx.array, float, Mask], mx.array]
# q [B, H, T, D] of a few queries and rows that are stored packed, scale, mask to [B, H, T, D]
AttendPacked = Callable[[mx.array, KvRows, float, Mask], mx.array]
# The gate and up projections and their input [..., H] to silu(gate) * up [..., F]
Swiglu = Callable[["Projection", mx.array], mx.array]
# x and y [..., H] to x + y and its norm
AddNorm = Callable[[mx.array, mx.array], tuple[mx.array, mx.array]]
# Rows [B, K - 1 + T, C] to those of a depthwise convolution over K of them, [B, T, C]
Convolve = Callable[[mx.array], mx.array]

# From so many rows on, unpacking a quantised matrix for the plain product costs less than MLX's quantised
# one. On the CPU that runs at 3 GFLOP/s against 200. On CUDA it ran at a fifth of the plain one's speed for
# prompts, and for the rows [B, 1, in] of a batch it reads the matrix once for each row.
_UNPACK_ROWS = 4


def apply_layer(layer: nn.Module, x: mx.array) -> mx.array:
    """As MLX does."""
    out: mx.array = layer(x)
    return out


def apply_unpacked(layer: nn.Module, x: mx.array) -> mx.array:
    """Multiply many rows by the unpacked matrix, which is made for each product and not kept."""
    many = x.size // x.shape[-1] >= _UNPACK_ROWS
    if many and type(layer) is nn.QuantizedLinear and "bias" not in layer and layer.mode == "affine":
        return x @ unpacked(layer).T
    return apply_layer(layer, x)


def unpacked(layer: nn.Module) -> mx.array:
    """The matrix [..., out, in] of an affinely quantised layer, made anew."""
    return mx.dequantize(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)


def shifted_sums(convolution: nn.Module) -> Convolve:
    """A :data:`Convolve` of a product for each tap."""
    taps = mx.contiguous(convolution.weight[:, :, 0].T)  # [K, C]
    rows_of = [tap.squeeze(0) for tap in mx.split(taps, len(taps))]

    def convolve(rows: mx.array) -> mx.array:
        n_tokens = rows.shape[1] - len(rows_of) + 1
        if n_tokens == 1:
            return (rows * taps).sum(axis=1, keepdims=True)
        total = rows[:, :n_tokens] * rows_of[0]
        for i, tap in enumerate(rows_of[1:], 1):
            total = total + rows[:, i : i + n_tokens] * tap
        return total

    return convolve


def convolution(module: nn.Module) -> Convolve:
    """A :data:`Convolve` by MLX's own, in one launch."""

    def convolve(rows: mx.array) -> mx.array:
        out: mx.array = module(rows)
        return out

    return convolve


def fused_attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> mx.array:
    """MLX's own attention, an :data:`Attend`."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def swiglu(inputs: Projection, x: mx.array) -> mx.array:
    """A :data:`Swiglu`."""
    gate, up = inputs(x)
    out: mx.array = nn.silu(gate) * up
    return out


def add_norm(norm: nn.Module) -> AddNorm:
    """An :data:`AddNorm` of an RMS norm's module."""

    def apply(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
        total = x + y
        return total, norm(total)

    return apply


@dataclass(frozen=True, slots=True)
class Ops:
    """The operations of a device, for the shapes of a model.

    Attributes:
        sigmoid, silu: keep the shape of their argument.
        apply: how a linear layer is applied.
        attend: scaled dot-product attention.
        attend_packed: the same for a few queries, over packed rows as they are; None to unpack them.
        rule: the gated delta rule.
        convolve: makes the short convolution in front of it of its module.
        swiglu: the middle of a dense feed-forward block.
        add_norm: makes the residual sum and the norm after it, which every half of a layer ends with.
    """

    sigmoid: Unary = mx.sigmoid
    silu: Unary = nn.silu
    apply: Apply = apply_layer
    attend: Attend = fused_attention
    attend_packed: AttendPacked | None = None
    rule: DeltaRule = field(default_factory=Chunked)
    convolve: Callable[[nn.Module], Convolve] = shifted_sums
    swiglu: Swiglu = swiglu
    add_norm: Callable[[nn.Module], AddNorm] = add_norm


class Projection:
    """``names`` of ``block``, applied to one input.

    Plain layers of one dtype are joined, and so are quantised layers of one format, a single matrix or
    one for each expert; the parts are then taken out of ``block``, so that no weight is held twice.
    Anything else (LoRA, mixed formats) is called one by one.

    Attributes:
        layers: what is applied to the input: the joined layer, or those of all names.
        parts: the columns of the joined layer's outputs that are each name's; none where nothing was joined.
    """

    def __init__(self, block: nn.Module, names: Sequence[str], apply: Apply) -> None:
        self._apply = apply
        layers = [block[name] for name in names]
        self.layers = [_joined(layers)] if _can_join(layers) else layers
        self._splits: list[int] = []
        self.parts: list[slice] = []
        if len(self.layers) < len(layers):
            widths = [int(layer.weight.shape[-2]) for layer in layers]
            self._splits = list(accumulate(widths))[:-1]
            self.parts = [slice(*pair) for pair in pairwise([0, *self._splits, None])]
            for name in names:
                block.pop(name)
            block["_".join(names)] = self.layers[0]

    def applied_by(self, apply: Apply) -> Projection:
        """The same layers, applied in another way."""
        other = copy.copy(self)
        other._apply = apply
        return other

    def __call__(self, x: mx.array) -> list[mx.array]:
        """[..., H] to one array [..., width] for each name, in order."""
        if self._splits:
            return list(mx.split(self.joined(x), self._splits, axis=-1))
        return [self._apply(layer, x) for layer in self.layers]

    def behind(self, n_names: int) -> Callable[[mx.array], list[mx.array]]:
        """The same without the first ``n_names`` names, whose outputs are then not computed."""
        if not self._splits:
            return lambda x: [self._apply(layer, x) for layer in self.layers[n_names:]]
        start = self._splits[n_names - 1]
        rest = copy.copy(self.layers[0])
        for name in ("weight", "scales", "biases"):
            if rest.get(name) is not None:
                rest[name] = rest[name][..., start:, :]  # rows of the same memory
        splits = [split - start for split in self._splits[n_names:]]
        mx.eval(rest.parameters())
        return lambda x: list(mx.split(self._apply(rest, x), splits, axis=-1))

    def split(self, outputs: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """What :attr:`layers` gave of an input, [..., width] each, as one array for each name."""
        return [outputs[0][..., part] for part in self.parts] if self.parts else outputs

    def joined(self, x: mx.array) -> mx.array:
        """[..., H] to the arrays of all names side by side, [..., total width]."""
        parts = [self._apply(layer, x) for layer in self.layers]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)


def _can_join(layers: Sequence[nn.Module]) -> bool:
    first = layers[0]
    if len(layers) == 1 or any(type(layer) is not type(first) or "bias" in layer for layer in layers):
        return False
    if type(first) in (nn.Linear, SwitchLinear):
        return len({layer.weight.dtype for layer in layers}) == 1
    if type(first) in (nn.QuantizedLinear, QuantizedSwitchLinear):
        formats = {(layer.group_size, layer.bits, layer.mode, layer.scales.dtype) for layer in layers}
        return len(formats) == 1 and not any(layer.get("global_scale") is not None for layer in layers)
    return False


def _joined(layers: Sequence[nn.Module]) -> nn.Module:
    """The first layer's kind with the rows of all; evaluated, so that the parts can go."""
    first = layers[0]
    whole = copy.copy(first)  # keeps the format of a quantised layer
    for name in ("weight", "scales", "biases"):
        if first.get(name) is not None:
            whole[name] = mx.concatenate([layer[name] for layer in layers], axis=-2)
    mx.eval(whole.parameters())
    return whole
