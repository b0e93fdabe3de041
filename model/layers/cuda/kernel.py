"""CUDA kernels as functions of arrays; ``mx.fast.cuda_kernel`` builds each on its first call."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx

Template = dict[str, int | float | mx.Dtype]
Outputs = Sequence[tuple[Sequence[int], mx.Dtype]]


class Kernel:
    """One kernel's source.

    Args:
        name: for profiles; a change of the source changes what MLX keeps the built kernel under.
        inputs, outputs: names of the arrays in ``source``, in order. MLX adds ``NAME_shape`` and
            ``NAME_strides`` where the source mentions them.
        source: the body.
        header: device functions in front of it.
        takes_views: inputs need not be contiguous; the source minds their strides.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        source: str,
        *,
        header: str = "",
        takes_views: bool = False,
    ) -> None:
        # MLX keeps built kernels on disk under their name and template alone.
        version = hashlib.sha256((header + source).encode()).hexdigest()[:8]
        code = source, header
        self._definition = (f"{name}_{version}", tuple(inputs), tuple(outputs), code, not takes_views)

    def __call__(
        self,
        inputs: Sequence[mx.array],
        template: Template,
        blocks: Sequence[int],
        threads: int,
        outputs: Outputs,
    ) -> list[mx.array]:
        """Launch it.

        Args:
            inputs: the arrays.
            template: compile-time constants and types of the source. A float arrives as its bits, for
                ``__uint_as_float``. An array of one number would be slow in its place: MLX keeps such in
                the host's memory, and every block would read it from there.
            blocks: [1..3] blocks in each direction.
            threads: of a block.
            outputs: shape and dtype of each result.
        """
        x, y, z = (*blocks, 1, 1)[:3]
        results: list[mx.array] = _built(*self._definition)(
            inputs=list(inputs),
            template=[(key, _bits(x) if isinstance(x, float) else x) for key, x in template.items()],
            grid=(x * threads, y, z),
            threadgroup=(threads, 1, 1),
            output_shapes=[tuple(shape) for shape, _ in outputs],
            output_dtypes=[dtype for _, dtype in outputs],
        )
        return results


def _bits(x: float) -> int:
    bits: int = struct.unpack("<i", struct.pack("<f", x))[0]
    return bits


@cache
def _built(
    name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], code: tuple[str, str], contiguous: bool
) -> Any:
    return mx.fast.cuda_kernel(
        name=name,
        input_names=list(inputs),
        output_names=list(outputs),
        source=code[0],
        header=code[1],
        ensure_row_contiguous=contiguous,
    )
