"""A sparse mixture of experts on CUDA: tokens go through a few experts of many, and one they share."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from model.devices.cuda.kernels import few_experts
from model.devices.cuda.kernels.few_rows import Matrix
from model.devices.cuda.product import Product
from model.layers.network import FeedForward, Mlp
from model.layers.ops import Ops, Projection, unpacked

# Pairs of token and expert up to which each reads the matrices of its expert by itself, as in a decode
# step. More are sorted by expert and multiplied in groups: MLX's grouped product reads a matrix once for all
# its rows, but computes tiles of 256 rows, so that two rows of an expert cost what 256 would.
_FEW_PAIRS = 1024


class Mixture:
    """Reads weights from ``block``, mlx-lm's sparse block.

    Args:
        ops: what the products are computed with that no kernel takes.
        uses_kernels: few tokens go through kernels where these take the weights.
    """

    def __init__(self, block: nn.Module, ops: Ops, *, uses_kernels: bool = True) -> None:
        self._router = Projection(block, ["gate", "shared_expert_gate"], ops.apply)
        self._inputs = Projection(block.switch_mlp, ["gate_proj", "up_proj"], ops.apply)
        self._output = block.switch_mlp.down_proj
        self._swiglu = ops.swiglu
        self._shared = Mlp(block.shared_expert, ops)
        self._widen_shared = Product(self._shared.inputs.layers, ops.apply, is_gated=True)
        self._narrow_shared = Product([self._shared.output], ops.apply)
        self._n_chosen: int = block.top_k
        self._is_normalised: bool = block.norm_topk_prob
        experts = [few_experts.experts_of(layer) for layer in (*self._inputs.layers, self._output)]
        self._kernels: tuple[Matrix, Matrix] | None = None
        if uses_kernels and few_experts.can_route(self._n_chosen) and len(experts) == 2:
            inputs, output = experts
            self._kernels = None if inputs is None or output is None else (inputs, output)

    def step(self, x: mx.array, residual: mx.array) -> mx.array:
        """Rows [B, H] to [B, H], ``residual`` [B, H] added to them."""
        if self._kernels is not None and self._are_few(x):
            return self._in_kernels(x, *self._kernels, residual)
        return residual + self(x[:, None])[:, 0]

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] to [B, T, H]."""
        if self._kernels is not None and self._are_few(x):
            return self._in_kernels(x.reshape(-1, x.shape[-1]), *self._kernels).reshape(x.shape)
        logits, shared_gate = self._router(x)
        odds = mx.softmax(logits, axis=-1, precise=True)
        chosen = mx.argpartition(odds, kth=-self._n_chosen, axis=-1)[..., -self._n_chosen :]
        shares = mx.take_along_axis(odds, chosen, axis=-1)
        if self._is_normalised:
            shares = shares / shares.sum(axis=-1, keepdims=True)
        outputs = self._one_by_one(x, chosen) if chosen.size <= _FEW_PAIRS else self._sorted(x, chosen)
        routed = (outputs * shares[..., None]).sum(axis=-2)
        return routed + mx.sigmoid(shared_gate) * self._shared(x)

    def _are_few(self, x: mx.array) -> bool:
        return x.size // x.shape[-1] * self._n_chosen <= _FEW_PAIRS

    def _in_kernels(
        self, rows: mx.array, inputs: Matrix, output: Matrix, residual: mx.array | None = None
    ) -> mx.array:
        logits = self._router.joined(rows)
        routes = few_experts.route(logits, self._n_chosen, is_normalised=self._is_normalised)
        wide = few_experts.widen(rows, routes.chosen, inputs)
        shared = self._narrow_shared(self._widen_shared(rows))
        return few_experts.narrow(wide, routes, shared, output, residual)

    def _one_by_one(self, x: mx.array, chosen: mx.array) -> mx.array:
        """[B, T, H] and the experts [B, T, K] of each token to the outputs [B, T, K, H]."""
        return self._experts(x[..., None, None, :], chosen, is_sorted=False)[..., 0, :]

    def _sorted(self, x: mx.array, chosen: mx.array) -> mx.array:
        pairs = chosen.flatten()
        order = mx.argsort(pairs)
        rows = mx.take(x.reshape(-1, x.shape[-1]), order // self._n_chosen, axis=0)
        outputs = self._experts(rows[:, None], mx.take(pairs, order), is_sorted=True)[:, 0]
        return mx.take(outputs, mx.argsort(order), axis=0).reshape(*chosen.shape, -1)

    def _experts(self, rows: mx.array, chosen: mx.array, *, is_sorted: bool) -> mx.array:
        """Rows [..., 1, H], each through the expert at its place in ``chosen``, to [..., 1, H]."""

        def apply(layer: nn.Module, x: mx.array) -> mx.array:
            return _product(layer, x, chosen, is_sorted=is_sorted)

        return apply(self._output, self._swiglu(self._inputs.applied_by(apply), rows))


class CudaFeedForward(FeedForward):
    """See :class:`FeedForward`.

    Attributes:
        experts: the mixture of a layer that has experts.
    """

    def __init__(self, block: nn.Module, ops: Ops) -> None:
        super().__init__(block, ops)
        self.experts = Mixture(block, ops) if self.mlp is None else None

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x) if self.experts is None else self.experts(x)


def _product(layer: nn.Module, x: mx.array, chosen: mx.array, *, is_sorted: bool) -> mx.array:
    """``layer``, a matrix [out, in] for each expert, applied to x [..., 1, in]."""
    can_unpack = type(layer) is QuantizedSwitchLinear and layer.mode == "affine" and "bias" not in layer
    if is_sorted and can_unpack:
        # All experts of the layer at once: sorted rows leave few of them out.
        return mx.gather_mm(x, unpacked(layer).swapaxes(-1, -2), rhs_indices=chosen, sorted_indices=True)
    out: mx.array = layer(x, chosen, sorted_indices=is_sorted)
    return out
