"""Linear layers that read the same input, run as one product where their weights can be joined.

One product in the place of four is what decoding needs: there a launch costs more than its arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, pairwise

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from numpy.typing import NDArray

from model.layers.linear import Apply


class Projection:
    """``names`` of ``block``, applied to one input.

    Plain layers of one dtype are joined, and so are quantised layers of one format, a single matrix or
    one for each expert; the parts are then taken out of ``block``, so that no weight is held twice.
    Anything else (LoRA, mixed formats) is called one by one.

    Attributes:
        layers: what is applied to the input: the joined layer, or those of all names.
    """

    def __init__(self, block: nn.Module, names: Sequence[str], apply: Apply) -> None:
        self._apply = apply
        layers = [block[name] for name in names]
        self.layers = [_joined(layers)] if _can_join(layers) else layers
        self._splits: list[int] = []
        if len(self.layers) < len(layers):
            widths = [int(layer.weight.shape[-2]) for layer in layers]
            self._splits = list(accumulate(widths))[:-1]
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

    def split(self, outputs: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """What :attr:`layers` gave of an input, [..., width] each, as one array for each name."""
        if not self._splits:
            return outputs
        return [outputs[0][..., start:end] for start, end in pairwise([0, *self._splits, None])]

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
