"""Full attention around its projections: norms and positions in one kernel; and, while decoding, softmax
attention in two (split over the columns, then joined), because MLX has no fused one for wide heads."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from model.devices.cuda.kernels.kernel import Constants, Kernel
from model.devices.cuda.kernels.tensor_core import TENSOR_CORE, has_tensor_cores

_WARPS = 4
_BLOCKS = 528  # four for each of 132 multiprocessors
_FEWEST_COLUMNS = 128  # of a block: less is not worth a block

# A warp does one head of one token: RMS norm for q and k, the rotation, and out in the layout that attention
# reads. Values are copied.
_PREPARE = """
constexpr int WARPS = THREADS / 32;
constexpr int EACH = D / 32;
constexpr int HEADS = HQ + 2 * HKV;
__shared__ float turned[WARPS * D];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const long long job = (long long)blockIdx.x * WARPS + warp;
const int n = job / HEADS, head = job % HEADS;
if (n >= n_rows) return;
const bool is_query = head < HQ, is_key = !is_query && head < HQ + HKV;
const int local = is_query ? head : is_key ? head - HQ : head - HQ - HKV;
const int column = is_query ? local * 2 * D : 2 * HQ * D + (head - HQ) * D;
const int n_heads = is_query ? HQ : HKV;
const T* source = &rows[(long long)n * WIDTH + column];
T* out = is_query ? q : is_key ? k : v;
out += IS_STEP ? ((long long)n * n_heads + local) * D : ((long long)local * n_rows + n) * D;
if (!is_query && !is_key) {
  for (int j = 0; j < EACH; ++j) out[j * 32 + lane] = source[j * 32 + lane];
  return;
}
float x[EACH];
float square = 0.0f;
for (int j = 0; j < EACH; ++j) {
  x[j] = static_cast<float>(source[j * 32 + lane]);
  square += x[j] * x[j];
}
for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
const float scale = rsqrtf(square / D + EPS);
const T* weight = is_query ? q_weight : k_weight;
for (int j = 0; j < EACH; ++j) {
  const int i = j * 32 + lane;
  x[j] *= scale * static_cast<float>(weight[i]);
  turned[warp * D + i] = x[j];
}
__syncwarp();
const float position = (float)positions[n];
for (int j = 0; j < EACH; ++j) {
  const int i = j * 32 + lane;
  float y = x[j];
  if (i < ROTARY) {
    const bool is_first = i < ROTARY / 2;
    const float angle = position * frequencies[is_first ? i : i - ROTARY / 2];
    const float other = turned[warp * D + (is_first ? i + ROTARY / 2 : i - ROTARY / 2)];
    y = is_first ? y * cosf(angle) - other * sinf(angle) : y * cosf(angle) + other * sinf(angle);
  }
  out[i] = static_cast<T>(y);
}
"""

# One block does one part of the columns for the query heads that share a KV head; each of its warps takes
# every WARPS-th run of AT_ONCE columns, softmax as it goes.
_BEGIN = """
constexpr int WARPS = THREADS / 32;
constexpr int G = HQ / HKV;
__shared__ float sums[WARPS * G * D];
__shared__ float stats[WARPS * G * 2];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
// The queries of a sequence are its last tokens, of which each sees one column more than the one before it.
const int part = blockIdx.x, kv_head = blockIdx.y, query_row = blockIdx.z, sequence = query_row / n_tokens;
const int length = n_columns - (n_tokens - 1 - query_row % n_tokens);
const int per_part = ((length + gridDim.x - 1) / gridDim.x + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
const int begin = part * per_part;
const int end = begin + per_part < length ? begin + per_part : length;
const int padding = IS_PADDED ? paddings[sequence] : 0;
const long long first = ((long long)sequence * HKV + kv_head) * capacity * D;
const T* key_rows = keys + first;
const T* value_rows = values + first;
"""

# A lane has D / 32 neighbouring numbers of every row.
_COLUMNS = """
constexpr int EACH = D / 32;
constexpr int BYTES = EACH * sizeof(T);
struct __align__(BYTES < 16 ? BYTES : 16) Pack { T at[EACH]; };
float query[G][EACH], sum[G][EACH], top[G], weight[G];
#pragma unroll
for (int g = 0; g < G; ++g) {
  const T* source = &q[((long long)query_row * HQ + kv_head * G + g) * D + lane * EACH];
  for (int j = 0; j < EACH; ++j) {
    query[g][j] = static_cast<float>(source[j]) * SCALE;
    sum[g][j] = 0.0f;
  }
  top[g] = -1e30f;
  weight[g] = 0.0f;
}
for (int base = begin + warp * AT_ONCE; base < end; base += WARPS * AT_ONCE) {
  Pack key[AT_ONCE], value[AT_ONCE];
  #pragma unroll
  for (int i = 0; i < AT_ONCE; ++i) {
    const int s = base + i < end ? base + i : end - 1;
    key[i] = *reinterpret_cast<const Pack*>(key_rows + (long long)s * D + lane * EACH);
    value[i] = *reinterpret_cast<const Pack*>(value_rows + (long long)s * D + lane * EACH);
  }
  #pragma unroll
  for (int g = 0; g < G; ++g) {
    float score[AT_ONCE];
    float highest = top[g];
    #pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      float dot = 0.0f;
      for (int j = 0; j < EACH; ++j) dot += query[g][j] * static_cast<float>(key[i].at[j]);
      for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffff, dot, step);
      const bool is_seen = base + i < end && base + i >= padding;
      score[i] = is_seen ? dot : -3e38f;
      highest = fmaxf(highest, score[i]);
    }
    const float kept = expf(top[g] - highest);
    top[g] = highest;
    weight[g] *= kept;
    for (int j = 0; j < EACH; ++j) sum[g][j] *= kept;
    #pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const float p = expf(score[i] - highest);
      weight[g] += p;
      for (int j = 0; j < EACH; ++j) sum[g][j] += p * static_cast<float>(value[i].at[j]);
    }
  }
}
#pragma unroll
for (int g = 0; g < G; ++g) {
  for (int j = 0; j < EACH; ++j) sums[(warp * G + g) * D + lane * EACH + j] = sum[g][j];
  if (lane == 0) {
    stats[(warp * G + g) * 2] = top[g];
    stats[(warp * G + g) * 2 + 1] = weight[g];
  }
}
"""

# The same by tensor cores, for up to 8 heads, 16 columns at a time. The heads are rows of A, keys are columns
# of B. A lane then has the scores of head g in the columns 2 t and 2 t + 1 of each 8, which is how B has to
# hold the shares; the values are A, turned over.
_COLUMNS_IN_TENSOR_CORES = """
static_assert(AT_ONCE == 16 && G <= 8 && D % 64 == 0, "what the fragments hold");
constexpr int RUNS = D / 32;
constexpr int SPANS = D / 64;
const int g = lane / 4, t = lane % 4;
unsigned query[RUNS][4];
#pragma unroll
for (int r = 0; r < RUNS; ++r) {
  load(query[r], &q[((long long)query_row * HQ + kv_head * G + (g < G ? g : 0)) * D + 32 * r + 8 * t]);
  for (int j = 0; j < 4; ++j) query[r][j] = g < G ? query[r][j] : 0u;
}
float sum[(SPANS + 1) / 2][8][4];
#pragma unroll
for (int s = 0; s < SPANS; s += 2)
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 4; ++j) sum[s / 2][i][j] = 0.0f;
float top = -1e30f, weight = 0.0f;
#pragma unroll 1
for (int base = begin + warp * AT_ONCE; base < end; base += WARPS * AT_ONCE) {
  unsigned key[2][RUNS][4], value[4][SPANS][4];
  #pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int wanted = base + 8 * n + g;
    const T* row = key_rows + (long long)(wanted < end ? wanted : end - 1) * D + 8 * t;
    #pragma unroll
    for (int r = 0; r < RUNS; ++r) load(key[n][r], row + 32 * r);
  }
  #pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int wanted = base + 8 * (n / 2) + 2 * t + n % 2;
    const T* row = value_rows + (long long)(wanted < end ? wanted : end - 1) * D + 8 * g;
    #pragma unroll
    for (int s = 0; s < SPANS; ++s) load(value[n][s], row + 64 * s);
  }
  float score[2][4] = {};
  #pragma unroll
  for (int r = 0; r < RUNS; ++r)
    #pragma unroll
    for (int n = 0; n < 2; ++n) {
      multiply_add(score[n], {query[r][0], 0u, query[r][1], 0u}, {key[n][r][0], key[n][r][1]});
      multiply_add(score[n], {query[r][2], 0u, query[r][3], 0u}, {key[n][r][2], key[n][r][3]});
    }
  float highest = top;
  #pragma unroll
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 2; ++j) {
      const int column = base + 8 * n + 2 * t + j;
      score[n][j] = column < end && column >= padding ? SCALE * score[n][j] : -3e38f;
      highest = fmaxf(highest, score[n][j]);
    }
  highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
  highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
  const float kept = expf(top - highest);
  top = highest;
  weight *= kept;
  #pragma unroll
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 2; ++j) {
      score[n][j] = expf(score[n][j] - highest);
      weight += score[n][j];
    }
  const unsigned shares[2] = {packed(score[0][0], score[0][1]), packed(score[1][0], score[1][1])};
  const float left = __shfl_sync(0xffffffff, kept, 8 * t), right = __shfl_sync(0xffffffff, kept, 8 * t + 4);
  #pragma unroll
  for (int s = 0; s < SPANS; s += 2)
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
      float(&total)[4] = sum[s / 2][i];
      total[0] *= left;
      total[1] *= right;
      total[2] *= left;
      total[3] *= right;
      unsigned a[4] = {};
      #pragma unroll
      for (int side = 0; side < 2; ++side) {
        if (s + side >= SPANS) continue;
        const int from = s + side, word = i / 2;
        a[side] = across(value[0][from][word], value[1][from][word], i % 2);
        a[side + 2] = across(value[2][from][word], value[3][from][word], i % 2);
      }
      multiply_add(total, a, shares);
    }
}
weight += __shfl_xor_sync(0xffffffff, weight, 1);
weight += __shfl_xor_sync(0xffffffff, weight, 2);
if (t == 0 && g < G) {
  stats[(warp * G + g) * 2] = top;
  stats[(warp * G + g) * 2 + 1] = weight;
}
#pragma unroll
for (int s = 0; s < SPANS; ++s)
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 2; ++j) {
      const int head = 2 * t + j;
      if (head < G) sums[(warp * G + head) * D + 64 * s + 8 * g + i] = sum[s / 2][i][s % 2 * 2 + j];
    }
"""

_END = """
__syncthreads();
for (int i = threadIdx.x; i < G * D; i += THREADS) {
  const int g = i / D, d = i % D;
  float highest = stats[g * 2];
  for (int w = 1; w < WARPS; ++w) highest = fmaxf(highest, stats[(w * G + g) * 2]);
  float total = 0.0f, share = 0.0f;
  for (int w = 0; w < WARPS; ++w) {
    const float kept = expf(stats[(w * G + g) * 2] - highest);
    total += kept * sums[(w * G + g) * D + d];
    share += kept * stats[(w * G + g) * 2 + 1];
  }
  const long long at = ((long long)query_row * HQ + kv_head * G + g) * gridDim.x + part;
  parts[at * D + d] = total;
  if (d == 0) {
    tops[at] = highest;
    weights[at] = share;
  }
}
"""

# One block does one head of one sequence: the parts' shares, then the output's gate.
_JOIN = """
const int d = threadIdx.x, head = blockIdx.x, sequence = blockIdx.y;
const long long first = ((long long)sequence * HQ + head) * n_parts;
float highest = tops[first];
#pragma unroll 8
for (int i = 1; i < n_parts; ++i) highest = fmaxf(highest, tops[first + i]);
float total = 0.0f, share = 0.0f;
#pragma unroll 8
for (int i = 0; i < n_parts; ++i) {
  const float kept = expf(tops[first + i] - highest);
  total += kept * parts[(first + i) * D + d];
  share += kept * weights[first + i];
}
const float gate = static_cast<float>(rows[(long long)sequence * WIDTH + head * 2 * D + D + d]);
out[((long long)sequence * HQ + head) * D + d] = static_cast<T>(total / share / (1.0f + expf(-gate)));
"""

_prepare = Kernel(
    "attention_prepare",
    ["rows", "q_weight", "k_weight", "frequencies", "positions"],
    ["q", "k", "v"],
    _PREPARE,
    numbers=["n_rows"],
)
_decode = {
    in_tensor_cores: Kernel(
        "attention_decode",
        ["q", "keys", "values", "paddings"],
        ["parts", "tops", "weights"],
        _BEGIN + (_COLUMNS_IN_TENSOR_CORES if in_tensor_cores else _COLUMNS) + _END,
        numbers=["n_columns", "capacity", "n_tokens"],
        header=TENSOR_CORE if in_tensor_cores else "",
    )
    for in_tensor_cores in (True, False)
}
_join = Kernel("attention_join", ["parts", "tops", "weights", "rows"], ["out"], _JOIN, numbers=["n_parts"])


class AttentionShape(NamedTuple):
    """Heads of a full-attention layer, how many of a head's numbers are rotated, and what the norms of
    queries and keys add to the mean square."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_rotated: int
    norm_eps: float

    def constants(self, dtype: mx.Dtype) -> Constants:
        return {
            "T": dtype,
            "HQ": self.n_heads,
            "HKV": self.n_kv_heads,
            "D": self.head_dim,
            "WIDTH": 2 * (self.n_heads + self.n_kv_heads) * self.head_dim,
            "EPS": self.norm_eps,
            "SCALE": self.head_dim**-0.5,
        }


class AttentionWeights(NamedTuple):
    """What the kernels read besides the rows.

    Attributes:
        q_norm, k_norm: [D] in the model's dtype.
        frequencies: [n_rotated / 2], radians a position, float32.
    """

    q_norm: mx.array
    k_norm: mx.array
    frequencies: mx.array


def can_attend(shape: AttentionShape, dtype: mx.Dtype) -> bool:
    """Whether the kernels take these shapes: heads whose lanes read whole vectors, in 48 KiB of shared
    memory."""
    group = shape.n_heads // shape.n_kv_heads
    fits = 4 * _WARPS * group * (shape.head_dim + 2) <= 48 << 10
    return fits and shape.head_dim in (64, 128, 256, 512) and dtype.size <= 4


def prepare(
    rows: mx.array, positions: mx.array, shape: AttentionShape, weights: AttentionWeights, *, is_step: bool
) -> tuple[mx.array, mx.array, mx.array]:
    """Queries, keys and values, normed and turned to their positions.

    Args:
        rows: [n, (q | gate) of each head | k | v] of the input projections.
        positions: [n] int32.
        is_step: whether the rows belong to n sequences, not to n tokens of one.

    Returns:
        q [B, Hq, T, D], k and v [B, Hkv, T, D], with B = n and T = 1 in a step, else B = 1 and T = n.
    """
    n_rows, threads = rows.shape[0], 32 * _WARPS
    n_jobs = n_rows * (shape.n_heads + 2 * shape.n_kv_heads)
    n_seqs, n_tokens = (n_rows, 1) if is_step else (1, n_rows)
    q, k, v = _prepare(
        [rows, weights.q_norm, weights.k_norm, weights.frequencies, positions],
        shape.constants(rows.dtype)
        | {"ROTARY": shape.n_rotated, "IS_STEP": int(is_step), "THREADS": threads},
        (-(-n_jobs // _WARPS),),
        threads,
        [
            ((n_seqs, heads, n_tokens, shape.head_dim), rows.dtype)
            for heads in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)
        ],
        n_rows,
    )
    return q, k, v


def decode(
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    n_columns: int,
    rows: mx.array,
    padding: mx.array | None,
    shape: AttentionShape,
    weights: AttentionWeights,
) -> mx.array:
    """The queries of the last T tokens of each of B sequences against its rows, gated. Each of them reads the
    rows anew, so T had better be small.

    Args:
        q: [B * T, Hq, 1, D].
        keys, values: [B, Hkv, S or more, D]; a view would be copied.
        n_columns: S.
        rows: [B * T, ...] as for :func:`prepare`, for the gates.
        padding: [B] int32, columns on the left that are none of the sequence's; None for none.

    Returns:
        [B * T, Hq * D].
    """
    n_queries, threads = q.shape[0], 32 * _WARPS
    n_parts = min(-(-n_columns // _FEWEST_COLUMNS), -(-_BLOCKS // (n_queries * shape.n_kv_heads)))
    constants = shape.constants(q.dtype)
    group, dim = shape.n_heads // shape.n_kv_heads, shape.head_dim
    in_tensor_cores = q.dtype == mx.bfloat16 and group <= 8 and dim <= 256 and has_tensor_cores()
    # Columns that a warp reads at once: fewer where many heads share them, whose sums it holds.
    at_once = 16 if in_tensor_cores else 4 if group * dim <= 1024 else 2
    parts, tops, shares = _decode[in_tensor_cores](
        [q, keys, values, weights.frequencies if padding is None else padding],
        constants | {"AT_ONCE": at_once, "IS_PADDED": int(padding is not None), "THREADS": threads},
        (n_parts, shape.n_kv_heads, n_queries),
        threads,
        [((n_queries, shape.n_heads, n_parts, shape.head_dim), mx.float32)]
        + [((n_queries, shape.n_heads, n_parts), mx.float32)] * 2,
        n_columns,
        keys.shape[2],
        n_queries // keys.shape[0],
    )
    (out,) = _join(
        [parts, tops, shares, rows],
        constants,
        (shape.n_heads, n_queries),
        shape.head_dim,
        [((n_queries, shape.n_heads * shape.head_dim), q.dtype)],
        n_parts,
    )
    return out
