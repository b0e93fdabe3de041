"""Which way through quantised matrices and through experts suits how many rows: what the limits in
``model/layers/ops.py`` and ``model/devices/cuda/mixture.py`` are set by.

    python bench/products.py --shape 35B-A3B --bits 16 4

For an NVIDIA GPU; ``--shape tiny-MoE`` runs on a CPU too, without the kernels.
Milliseconds of one product, or of one sparse block.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from typing import Any

from sides import prepare_side

prepare_side("crossturn")

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from filled import timed  # noqa: E402
from mlx_lm.models import qwen3_5  # noqa: E402
from shape_table import SHAPES  # noqa: E402

from model.backend import detect  # noqa: E402
from model.devices.cuda import device as cuda_device  # noqa: E402
from model.devices.cuda import mixture  # noqa: E402
from model.devices.cuda.mixture import Mixture  # noqa: E402
from model.layers.ops import Ops, apply_unpacked  # noqa: E402

N_AT_ONCE = 8  # in one evaluation, so that launches overlap as they do in a pass

ON_GPU = detect().kind == "cuda"
Way = Callable[[mx.array], mx.array]


def main() -> None:
    """Print a table for the products and one for the experts of each width."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", default="35B-A3B", choices=[k for k in SHAPES if "num_experts" in SHAPES[k]]
    )
    parser.add_argument("--matrix", type=int, nargs=2, default=[18432, 2560], help="outputs and inputs")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 4], choices=[16, 8, 4])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 512, 4096])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 32, 64, 128, 512, 4096])
    options = parser.parse_args()
    dtype = getattr(mx, detect().dtype or "bfloat16")
    for bits in options.bits:
        if bits < 16:
            n_out, n_in = options.matrix
            ways = ways_through_matrix(n_out, n_in, bits, dtype)
            table(f"{n_out} x {n_in}, {bits} bits", "rows", options.rows, n_in, ways, dtype)
        raw = SHAPES[options.shape]
        ways = ways_through_experts(raw, bits, dtype)
        name = f"experts of {options.shape}, {bits} bits"
        table(name, "tokens", options.tokens, raw["hidden_size"], ways, dtype)


def ways_through_matrix(n_out: int, n_in: int, bits: int, dtype: mx.Dtype) -> dict[str, Way]:
    """Of rows [B, 1, in]."""
    plain = nn.Linear(n_in, n_out, bias=False)
    plain.set_dtype(dtype)
    layer = nn.QuantizedLinear.from_linear(plain, 64, bits)
    mx.eval(plain.parameters(), layer.parameters())
    apply = cuda_device.apply if ON_GPU else apply_unpacked

    def unpacked(x: mx.array) -> mx.array:
        return x @ mx.dequantize(layer.weight, layer.scales, layer.biases, 64, bits).T

    return {
        "bfloat16": plain,
        "MLX's": layer,
        "MLX's, 2-D": lambda x: layer(x[:, 0]),
        "unpacked": unpacked,
        "ours": lambda x: apply(layer, x),
    }


def ways_through_experts(raw: dict[str, Any], bits: int, dtype: mx.Dtype) -> dict[str, Way]:
    """Of tokens [B, 1, H]."""
    arguments = qwen3_5.ModelArgs(model_type="qwen3_5", text_config=raw | {"num_hidden_layers": 1})
    block = qwen3_5.Model(arguments).language_model.model.layers[0].mlp
    block.set_dtype(dtype)
    if bits < 16:
        nn.quantize(block, 64, bits)
    mx.eval(block.parameters())
    ops = cuda_device.cuda_ops() if ON_GPU else Ops(apply=apply_unpacked)
    copied = copy.deepcopy(block)
    ours = Mixture(copied, ops, uses_kernels=ON_GPU)

    def forced(most: int) -> Way:
        def way(x: mx.array) -> mx.array:
            usual, mixture._FEW_PAIRS = mixture._FEW_PAIRS, most
            try:
                return ours(x)
            finally:
                mixture._FEW_PAIRS = usual

        return way

    return {"mlx-lm": block, "as few": forced(1 << 30), "sorted": forced(0), "ours": ours}


def table(
    title: str, unit: str, sizes: Sequence[int], width: int, ways: dict[str, Way], dtype: mx.Dtype
) -> None:
    """Milliseconds of each way for each number of rows, printed line by line."""
    print(f"\n{title}\n{unit:>8}" + "".join(f"{name:>14}" for name in ways), flush=True)
    for size in sizes:
        inputs = [mx.random.normal((size, 1, width)).astype(dtype) for _ in range(N_AT_ONCE)]
        mx.eval(inputs)
        cells = [f"{1e3 * seconds(way, inputs):14.3f}" for way in ways.values()]
        print(f"{size:8}" + "".join(cells), flush=True)


def seconds(way: Way, inputs: Sequence[mx.array]) -> float:
    return timed(lambda: mx.eval([way(x) for x in inputs])) / len(inputs)


if __name__ == "__main__":
    main()
