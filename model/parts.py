"""How many tokens of a prompt a pass takes at once: as many as suit the device, and as its memory holds."""

from __future__ import annotations

import mlx.core as mx

from model.checkpoint.config import ModelConfig
from model.checkpoint.weights import Weights
from model.layers.delta_rule import CHUNK

_LEAST = 4 * CHUNK
_WEIGHT = 0.5  # of the newest pass in the measured speed


class Pace:
    """How fast prompts are read, measured as they are.

    Args:
        seconds_per_token: None before any pass was measured.
    """

    def __init__(self) -> None:
        self.seconds_per_token: float | None = None

    def note(self, n_tokens: int, seconds: float) -> None:
        """A pass took so long. Short ones say little: a pass has a cost of its own."""
        if n_tokens < _LEAST:
            return
        newest, known = seconds / n_tokens, self.seconds_per_token
        self.seconds_per_token = newest if known is None else _WEIGHT * newest + (1 - _WEIGHT) * known

    def tokens_within(self, seconds: float, most: int) -> int:
        """Tokens, whole chunks and at least a few of them, that a pass may take to be done in ``seconds``."""
        if self.seconds_per_token is None:
            return _LEAST
        n = int(seconds / self.seconds_per_token)
        return max(_LEAST, min(most, n // CHUNK * CHUNK))


def part_tokens(most: int, token_bytes: int, n_bytes: int | None = None) -> int:
    """Tokens of a part, a multiple of the GDN chunk, whose temporaries take ``n_bytes`` at most (None: any),
    unless that is less than a few chunks.

    Args:
        most: what suits the device.
        token_bytes: see :func:`temporary_bytes`.
    """
    fitting = most if n_bytes is None else n_bytes // token_bytes // CHUNK * CHUNK
    return max(_LEAST, min(most, fitting))


def temporary_bytes(
    config: ModelConfig, weights: Weights, dtype: mx.Dtype, layers_at_once: int | None
) -> int:
    """About what one token of a prompt takes while it is read, in bytes, attention's scores aside: they are
    bounded by themselves.

    Args:
        weights: by dotted name; the outputs of all matrices are counted twice, once for what is made of them.
        dtype: what is computed in.
        layers_at_once: those whose temporaries are in memory together; None for all.
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
    return sum(sorted(layers)[-(layers_at_once or len(layers)) :])
