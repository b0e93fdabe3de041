"""How many tokens of a prompt a pass takes at once: as many as suit the device, and as its memory holds."""

from __future__ import annotations

import mlx.core as mx

from model.backend import BackendKind
from model.checkpoint.config import ModelConfig
from model.checkpoint.weights import Weights
from model.layers.gdn import CHUNK

# Enough for the matrix products to run at full speed, few enough for the temporaries to stay small (and, on
# the CPU, near its caches).
_MOST: dict[BackendKind, int] = {"cpu": 512, "metal": 2048, "cuda": 4096}
_LEAST = 4 * CHUNK

# Layers whose temporaries are in memory together. MLX launches a CUDA pass whole before its first kernels are
# done: the 0.8B shape took 3.4 MB a token on an H200, 4B 5.3 MB, where this counts 2.5 and 6.9. On Metal it
# waits when ten command buffers of some 50 MB are under way, less than a layer of a long part (not run here).
_AT_ONCE: dict[BackendKind, int | None] = {"cpu": 1, "metal": 2, "cuda": None}


def part_tokens(kind: BackendKind, token_bytes: int, n_bytes: int | None = None) -> int:
    """Tokens of a part, a multiple of the GDN chunk, whose temporaries take ``n_bytes`` at most (None: any),
    unless that is less than a few chunks.

    Args:
        kind: the device.
        token_bytes: see :func:`temporary_bytes`.
    """
    fitting = _MOST[kind] if n_bytes is None else n_bytes // token_bytes // CHUNK * CHUNK
    return max(_LEAST, min(_MOST[kind], fitting))


def temporary_bytes(kind: BackendKind, config: ModelConfig, weights: Weights, dtype: mx.Dtype) -> int:
    """About what one token of a prompt takes while it is read, in bytes, attention's scores aside: they are
    bounded by themselves.

    Args:
        weights: by dotted name; the outputs of all matrices are counted twice, once for what is made of them.
        dtype: what is computed in.
    """
    # Of the chunked rule in float32: U and the new values, W and the keys, and a state for each chunk.
    widths = config.value_head_dim + config.key_head_dim
    states = config.value_head_dim * config.key_head_dim // CHUNK
    of_rule = 4 * config.n_value_heads * (2 * widths + states)
    layers = [of_rule if type_ == "linear_attention" else 0 for type_ in config.layer_types]
    for name, weight in weights.items():
        path = name.split(".")
        if "layers" not in path or path[-1] != "weight" or weight.ndim < 2 or "conv1d" in path:
            continue
        n_times = config.n_chosen if weight.ndim == 3 else 1
        layers[int(path[path.index("layers") + 1])] += 2 * dtype.size * n_times * weight.shape[-2]
    return sum(sorted(layers)[-(_AT_ONCE[kind] or len(layers)) :])
