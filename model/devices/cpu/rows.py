"""Rows of float32 numbers in NumPy on all cores: products with a layer's matrix, norms and sigmoids.

MLX's CPU backend computes everything but its matrix products on one thread. NumPy lets go of Python's
lock while it computes, so plain threads that call it run side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from model.layers.ops import Projection, unpacked

Array = NDArray[np.float32]

# Rows from which on a prompt is shared between threads, and the fewest in a thread's share.
MANY_ROWS, _FEWEST_ROWS = 32, 16
# Fewer rows are multiplied one by one: OpenBLAS packs the matrix for a product of matrices,
# which takes longer.
_MATRIX_ROWS = 8
# Numbers in a matrix from which on a step's product is shared between threads, and in a share of it that
# stays in a core's cache while row after row is multiplied by it.
_LARGE, _SHARE = 1 << 21, 1 << 19
_UNIT_EPS = 1e-6  # on the sum of squares of a query or a key


class Crew:
    """The calling thread and ``size - 1`` helpers, which start when they are first needed.

    Helpers must not touch MLX: its streams belong to the thread that made them.

    Attributes:
        size: threads that work at once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._helpers = ThreadPoolExecutor(size, thread_name_prefix="crew")

    def each(self, work: Callable[[int], object], n: int) -> None:
        """Call ``work`` with 0 .. n - 1, each once, in no particular order; return when all are done.

        Raises:
            Exception: the first that ``work`` raised; what other threads had begun is finished by then.
        """
        numbers = count()

        def run() -> None:
            while (number := next(numbers)) < n:
                work(number)

        helping = [self._helpers.submit(run) for _ in range(min(self.size, n) - 1)]
        try:
            run()
        finally:
            faults = [helper.exception() for helper in helping]
        for fault in faults:
            if fault is not None:
                raise fault


def can_multiply(*layers: nn.Module) -> bool:
    """Whether :func:`matrix` gives the matrices of all ``layers``, which compute in float32."""
    return all(is_plain(layer) or _is_packed(layer) for layer in layers)


def is_plain(layer: nn.Module) -> bool:
    """Whether ``layer`` is a float32 matrix and nothing else, which :func:`matrix` gives without a copy."""
    return type(layer) is nn.Linear and "bias" not in layer and bool(layer.weight.dtype == mx.float32)


def matrix(layer: nn.Module) -> Array:
    """[in, out]: a view of the weights, or their unpacked form. Call on the thread that runs MLX."""
    return np.asarray(unpacked(layer) if _is_packed(layer) else layer.weight).T


def pieces(n_rows: int, crew: Crew) -> list[slice]:
    """Rows in as many even pieces as there are threads, or in fewer."""
    return _even(n_rows, max(1, min(crew.size, n_rows // _FEWEST_ROWS)))


def _even(n_rows: int, n: int) -> list[slice]:
    """Rows in ``n`` pieces of equal length."""
    bounds = [n_rows * i // n for i in range(n + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def multiply(x: Array, weight: Array, crew: Crew) -> Array:
    """x [T, in] by ``weight`` [in, out]."""
    out = np.empty((len(x), weight.shape[1]), np.float32)
    parts = pieces(len(x), crew)
    crew.each(lambda i: np.matmul(x[parts[i]], weight, out=out[parts[i]]), len(parts))
    return out


def step_multiply(x: Array, weight: Array, crew: Crew) -> Array:
    """x [B, in], of a step, by ``weight`` [in, out], shared out where that is large."""
    if len(x) >= MANY_ROWS:
        return multiply(x, weight, crew)
    are_few = len(x) < _MATRIX_ROWS
    if weight.size < _LARGE:
        return np.matvec(weight.T, x) if are_few else x @ weight
    out = np.empty((len(x), weight.shape[1]), np.float32)
    parts = _even(weight.shape[1], weight.size // _SHARE if are_few else crew.size)

    def one(i: int) -> None:
        share = weight[:, parts[i]]
        out[:, parts[i]] = np.matvec(share.T, x) if are_few else x @ share

    crew.each(one, len(parts))
    return out


class StepInputs:
    """A projection of plain layers, as a step calls it."""

    def __init__(self, projection: Projection, crew: Crew) -> None:
        self._weights = [matrix(layer) for layer in projection.layers]
        self._parts = projection.parts
        self._crew = crew

    def __call__(self, x: Array) -> list[Array]:
        """x [B, in] to one array [B, width] for each of the projection's names, in order."""
        outputs = [step_multiply(x, weight, self._crew) for weight in self._weights]
        return [outputs[0][:, part] for part in self._parts] if self._parts else outputs


def silu(x: Array) -> Array:
    """x / (1 + exp(-x))."""
    return np.divide(x, one_plus_exp_minus(x, divisor := np.empty_like(x)), out=divisor)


def one_plus_exp_minus(x: Array, out: Array) -> Array:
    """1 + exp(-x), what a sigmoid divides by, in ``out``; where it overflows, the quotient is the right 0."""
    with np.errstate(over="ignore"):
        np.exp(np.negative(x, out=out), out=out)
    out += 1.0
    return out


def normalise(rows: Array, scale: float) -> None:
    """Scale every row to the length ``scale``, in place."""
    rows *= (np.float32(scale) / np.sqrt(np.vecdot(rows, rows) + np.float32(_UNIT_EPS)))[..., None]


def _is_packed(layer: nn.Module) -> bool:
    is_affine = type(layer) is nn.QuantizedLinear and layer.mode == "affine" and "bias" not in layer
    return is_affine and bool(layer.scales.dtype == mx.float32)


class RmsNorm:
    """The RMS norm of module ``norm`` over the last axis; its weight is read once."""

    def __init__(self, norm: nn.Module) -> None:
        weight = np.asarray(norm.weight)
        # Over the root of the sum instead of the mean: one operation less.
        self._weight = weight * np.float32(weight.size**0.5)
        self._eps = np.float32(norm.eps * weight.size)

    def __call__(self, x: Array) -> Array:
        out = x * self._weight
        out /= np.sqrt(np.vecdot(x, x) + self._eps)[..., None]
        return out
