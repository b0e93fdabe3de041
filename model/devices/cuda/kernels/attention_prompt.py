"""Causal softmax attention of many queries, where MLX has no fused kernel: wide heads, and float32.

In blocks of queries, so that no block's scores reach beyond what its last query sees, and what is in memory
stays bounded. Between the two products of a block one kernel scales, masks and normalises.
"""

from __future__ import annotations

import mlx.core as mx

from model.devices.cuda.kernels.kernel import Kernel
from model.layers.attention import query_blocks

_FUSED_WIDTH = 128  # the widest head that MLX hands to cuDNN
_MOST_ROWS, _FEWEST_ROWS = 1024, 64
_SCORES = 1 << 27  # in memory at once
ATTENTION_BYTES = 2 * 4 * _SCORES  # and the shares made of them, in float32 at worst
ALIGNMENT = 64  # cuBLAS has no fast products for rows of an odd number of scores
_THREADS = 256

# One block does one row: maximum and sum as it reads, then the shares. Columns behind the row's own are 0.
_SOFTMAX = """
constexpr int WARPS = THREADS / 32;
__shared__ float tops[WARPS];
__shared__ float sums[WARPS];
const int t = threadIdx.x, lane = t % 32, warp = t / 32;
const int seen = n_keys - n_queries + (int)(blockIdx.x % n_queries) + 1;
const T* row = scores + (long long)blockIdx.x * n_columns;
T* out = shares + (long long)blockIdx.x * n_columns;
const float factor = SCALE;
float top = -1e30f, sum = 0.0f;
for (int c = t; c < seen; c += THREADS) {
  const float x = factor * static_cast<float>(row[c]);
  if (x > top) {
    sum *= expf(top - x);
    top = x;
  }
  sum += expf(x - top);
}
for (int step = 16; step > 0; step /= 2) {
  const float other_top = __shfl_xor_sync(0xffffffff, top, step);
  const float other_sum = __shfl_xor_sync(0xffffffff, sum, step);
  const float highest = fmaxf(top, other_top);
  sum = sum * expf(top - highest) + other_sum * expf(other_top - highest);
  top = highest;
}
if (lane == 0) {
  tops[warp] = top;
  sums[warp] = sum;
}
__syncthreads();
top = tops[0];
for (int i = 1; i < WARPS; ++i) top = fmaxf(top, tops[i]);
sum = 0.0f;
for (int i = 0; i < WARPS; ++i) sum += sums[i] * expf(tops[i] - top);
const float share = 1.0f / sum;
for (int c = t; c < n_columns; c += THREADS)
  out[c] = static_cast<T>(c < seen ? share * expf(factor * static_cast<float>(row[c]) - top) : 0.0f);
"""

_softmax = Kernel(
    "causal_softmax", ["scores"], ["shares"], _SOFTMAX, numbers=["n_queries", "n_columns", "n_keys"]
)


def is_needed(head_dim: int, dtype: mx.Dtype) -> bool:
    """Whether MLX would write out all scores of a prompt with such heads."""
    return head_dim > _FUSED_WIDTH or dtype == mx.float32


def attend_causal(q: mx.array, k: mx.array, v: mx.array, n_keys: int, scale: float) -> mx.array:
    """Attention of the last T of S tokens of one sequence.

    Args:
        q: [1, Hq, T, D].
        k, v: [1, Hkv, S or more, D], views or not. Columns behind S are not attended to; up to a multiple of
            :data:`ALIGNMENT` they make the products fast.
        n_keys: S.
        scale: of the scores.

    Returns:
        [1, Hq, T, D].
    """
    _, n_heads, n_queries, dim = q.shape
    n_kv_heads = k.shape[1]
    n_rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _SCORES // (n_heads * n_keys)))
    outs = []
    for rows, seen in query_blocks(n_queries, n_keys, n_rows):
        block = q[:, :, rows]
        columns = slice(-(-seen // ALIGNMENT) * ALIGNMENT)
        # The heads that share keys stand below each other: one product for all of them.
        scores = block.reshape(1, n_kv_heads, -1, dim) @ k[:, :, columns].swapaxes(-1, -2)
        shares = _causal_softmax(scores, block.shape[2], seen, scale)
        outs.append((shares @ v[:, :, columns]).reshape(block.shape))
    return mx.concatenate(outs, axis=2) if len(outs) > 1 else outs[0]


def _causal_softmax(scores: mx.array, n_queries: int, n_keys: int, scale: float) -> mx.array:
    """scores [1, Hkv, heads x queries, S or more] of the last ``n_queries`` of S tokens to shares."""
    (shares,) = _softmax(
        [scores],
        {"T": scores.dtype, "SCALE": scale, "THREADS": _THREADS},
        (scores.shape[1] * scores.shape[2],),
        _THREADS,
        [(scores.shape, scores.dtype)],
        n_queries,
        scores.shape[3],
        n_keys,
    )
    return shares
