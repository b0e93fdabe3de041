"""Up to 32 rows through a matrix at the speed at which the matrix can be read, plain or quantised, with what
stands around the product in a layer: the norm before it, SwiGLU or the residual sum after it.

A decode step is bound by its launches, so one kernel does what would be three. Tensor cores multiply 16 of
the input's rows by 8 of the matrix's at a time; a lone row costs the same read of the matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from model.devices.cuda.kernels.kernel import Kernel
from model.devices.cuda.kernels.tensor_core import TENSOR_CORE, has_tensor_cores

MOST_ROWS = 32

# A block does OUTS times 8 of the matrix's rows, 8 gates and their 8 ups where GATED; its warps share the
# columns. The input's rows are A, 16 at a time, the matrix's are B; a lane reads RUN neighbouring numbers of
# a row of each. All that a pass reads is asked for before anything is multiplied, without a branch: columns
# past the end count as zeros, and rows past the end repeat the last, into sums that nobody reads.
_MULTIPLY = """
constexpr int WARPS = THREADS / 32;
constexpr int RUN = BITS == 16 ? 8 : 16;
constexpr int WORDS = RUN * BITS / 32;
constexpr int SPAN = 4 * RUN;
constexpr int AHEAD = 128 / TILES / SPAN;
constexpr int EIGHTS = RUN / 8;
constexpr unsigned MINUS_ZEROS = 0x80008000u, ONES = 0x3f803f80u;
__shared__ float parts[WARPS][TILES * 16][OUTS * 8];
__shared__ float squares[WARPS][TILES * 16];
const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;
const int first = blockIdx.x * (GATED ? 8 : OUTS * 8);
auto twice = [](const T& x) { return *reinterpret_cast<const unsigned short*>(&x) * 0x10001u; };
const char* matrix_rows[OUTS];
long long groups[OUTS];
#pragma unroll
for (int m = 0; m < OUTS; ++m) {
  const int wanted = GATED ? first + g : first + m * 8 + g;
  const long long row = (wanted < n_out ? wanted : n_out - 1) + (GATED ? m * n_out : 0);
  matrix_rows[m] = reinterpret_cast<const char*>(weight) + row * IN * BITS / 8;
  groups[m] = row * (IN / GROUP);
}
const T* input_rows[TILES][2];
#pragma unroll
for (int i = 0; i < TILES; ++i)
  for (int side = 0; side < 2; ++side) {
    const int wanted = i * 16 + side * 8 + g;
    input_rows[i][side] = x + (long long)(wanted < n_rows ? wanted : n_rows - 1) * IN;
  }
constexpr int WIDTH = GATED ? 8 : OUTS * 8;
constexpr int RESULTS = (TILES * 16 * WIDTH + THREADS - 1) / THREADS;
float before[RESULTS];
if (SUMMED)
  #pragma unroll
  for (int j = 0; j < RESULTS; ++j) {
    const int n = (threadIdx.x + j * THREADS) / WIDTH, r = threadIdx.x % WIDTH;
    const bool is_inside = n < n_rows && first + r < n_out;
    before[j] = static_cast<float>(residual[is_inside ? (long long)n * n_out + first + r : 0]);
  }
float sum[TILES][OUTS][4];
float square[TILES][2][4];
#pragma unroll
for (int i = 0; i < TILES; ++i)
  for (int j = 0; j < 4; ++j) {
    square[i][0][j] = square[i][1][j] = 0.0f;
    for (int m = 0; m < OUTS; ++m) sum[i][m][j] = 0.0f;
  }
#pragma unroll 1
for (int base = warp * AHEAD * SPAN; base < IN; base += WARPS * AHEAD * SPAN) {
  unsigned runs[AHEAD][OUTS][WORDS], rows[AHEAD][TILES][2][EIGHTS][4], norms[AHEAD][EIGHTS][4];
  unsigned scale[AHEAD][OUTS], bias[AHEAD][OUTS];
  #pragma unroll
  for (int u = 0; u < AHEAD; ++u) {
    const int wanted = base + u * SPAN + t * RUN;
    const bool is_inside = IN % (AHEAD * SPAN) == 0 || wanted < IN;
    const int k = is_inside ? wanted : 0;
    #pragma unroll
    for (int m = 0; m < OUTS; ++m) {
      load(runs[u][m], matrix_rows[m] + k * BITS / 8);
      if (BITS < 16) {
        scale[u][m] = twice(scales[groups[m] + k / GROUP]);
        bias[u][m] = twice(biases[groups[m] + k / GROUP]);
      }
    }
    #pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
      if (NORMED) load(norms[u][e], &norm[k + e * 8]);
      #pragma unroll
      for (int i = 0; i < TILES; ++i)
        for (int side = 0; side < 2; ++side) {
          load(rows[u][i][side][e], &input_rows[i][side][k + e * 8]);
          for (int j = 0; j < 4; ++j) rows[u][i][side][e][j] = is_inside ? rows[u][i][side][e][j] : 0u;
        }
    }
  }
  __syncwarp();  // or the compiler would save registers by waiting for one load after the other
  #pragma unroll
  for (int u = 0; u < AHEAD; ++u)
    #pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
      unsigned b[OUTS][4];
      #pragma unroll
      for (int m = 0; m < OUTS; ++m)
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (BITS == 16) {
            b[m][j] = runs[u][m][j];
            continue;
          }
          unsigned q;
          if (BITS == 4) {
            // The numbers j and j + 4 of eight, as 128 + q, whose last bits are q.
            q = fused(ONES, runs[u][m][e] >> 4 * j & 0x000f000fu | 0x43004300u, 0xc300c300u);
          } else {
            const unsigned word = runs[u][m][e * 2 + j / 2] >> 16 * (j % 2);
            q = packed(static_cast<float>(word & 255u), static_cast<float>(word >> 8 & 255u));
          }
          b[m][j] = fused(q, scale[u][m], bias[u][m]);
        }
      #pragma unroll
      for (int i = 0; i < TILES; ++i) {
        unsigned a[2][4];
        #pragma unroll
        for (int side = 0; side < 2; ++side)
          #pragma unroll
          for (int j = 0; j < 4; ++j) {
            const unsigned* pairs = rows[u][i][side][e];
            a[side][j] = BITS == 4 ? across(pairs[j / 2], pairs[j / 2 + 2], j % 2) : pairs[j];
          }
        if (NORMED) {
          // Products of the rows with themselves have the squares' sums on their diagonal.
          #pragma unroll
          for (int side = 0; side < 2; ++side) {
            multiply_add(square[i][side], {a[0][0], a[1][0], a[0][1], a[1][1]}, {a[side][0], a[side][1]});
            multiply_add(square[i][side], {a[0][2], a[1][2], a[0][3], a[1][3]}, {a[side][2], a[side][3]});
          }
          #pragma unroll
          for (int side = 0; side < 2; ++side)
            for (int j = 0; j < 4; ++j) {
              const unsigned* pairs = norms[u][e];
              const unsigned weights = BITS == 4 ? across(pairs[j / 2], pairs[j / 2 + 2], j % 2) : pairs[j];
              a[side][j] = fused(a[side][j], weights, MINUS_ZEROS);
            }
        }
        #pragma unroll
        for (int m = 0; m < OUTS; ++m) {
          multiply_add(sum[i][m], {a[0][0], a[1][0], a[0][1], a[1][1]}, {b[m][0], b[m][1]});
          multiply_add(sum[i][m], {a[0][2], a[1][2], a[0][3], a[1][3]}, {b[m][2], b[m][3]});
        }
      }
    }
}
#pragma unroll
for (int i = 0; i < TILES; ++i)
  for (int side = 0; side < 2; ++side) {
    const int n = i * 16 + side * 8 + g;
    for (int m = 0; m < OUTS; ++m)
      for (int j = 0; j < 2; ++j) parts[warp][n][m * 8 + 2 * t + j] = sum[i][m][side * 2 + j];
    const float even = square[i][side][side * 2], odd = square[i][side][side * 2 + 1];
    if (NORMED && t == g / 2) squares[warp][n] = g % 2 ? odd : even;
  }
__syncthreads();
#pragma unroll
for (int j = 0; j < RESULTS; ++j) {
  const int n = (threadIdx.x + j * THREADS) / WIDTH, r = threadIdx.x % WIDTH;
  if (n >= n_rows || first + r >= n_out) continue;
  float value = 0.0f, up = 0.0f, length = 0.0f;
  #pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    value += parts[w][n][r];
    if (GATED) up += parts[w][n][r + 8];
    if (NORMED) length += squares[w][n];
  }
  if (NORMED) {
    const float factor = rsqrtf(length / IN + EPS);
    value *= factor;
    up *= factor;
  }
  if (GATED) value = value / (1.0f + expf(-value)) * up;
  if (SUMMED) value += before[j];
  y[(long long)n * n_out + first + r] = static_cast<TO>(value);
}
"""

_multiply = Kernel(
    "few_rows",
    ["x", "weight", "scales", "biases", "norm", "residual"],
    ["y"],
    _MULTIPLY,
    numbers=["n_rows", "n_out"],
    header=TENSOR_CORE,
)


class Matrix(NamedTuple):
    """A linear layer's weights [out, in], or those of experts [E, out, in], as kernels read them.

    Attributes:
        weight: as it is, or packed integers of ``bits`` in uint32, the first in the lowest bits.
        scales, biases: [..., out, in / group]: a weight is ``scale * q + bias``; of no use at 16 bits.
        bits: 16 for what is not packed.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group: int


class Norm(NamedTuple):
    """An RMS norm: weight [in] in bfloat16, and what is added to the mean square."""

    weight: mx.array
    eps: float


def matrix_of(layer: nn.Module) -> Matrix | None:
    """The layer's weights; None if the kernel does not take them: anything but a plain or an affinely
    quantised matrix of 4 or 8 bits over bfloat16, or a GPU that does not know these."""
    if "bias" in layer or not has_tensor_cores():
        return None
    weight = layer.get("weight")
    if type(layer) is nn.Linear and weight.dtype == mx.bfloat16 and weight.shape[1] % 8 == 0:
        return Matrix(weight, weight, weight, 16, 64)
    is_affine = type(layer) is nn.QuantizedLinear and layer.mode == "affine" and layer.bits in (4, 8)
    if is_affine and layer.scales.dtype == mx.bfloat16 and layer.group_size % 32 == 0:
        return Matrix(weight, layer.scales, layer.biases, layer.bits, layer.group_size)
    return None


def can_multiply(x: mx.array) -> bool:
    """Whether :func:`multiply` takes these rows [..., in]."""
    return x.dtype == mx.bfloat16 and x.size <= MOST_ROWS * x.shape[-1]


def multiply(
    x: mx.array,
    matrix: Matrix,
    *,
    norm: Norm | None = None,
    gated: bool = False,
    residual: mx.array | None = None,
    dtype: mx.Dtype = mx.bfloat16,
) -> mx.array:
    """x [n, in], n at most 32, times the matrix [out, in], summed in float32.

    Args:
        x: bfloat16.
        matrix: see :func:`matrix_of`.
        norm: of ``x`` before the product.
        gated: the matrix is [gate | up] and the result silu(gate) * up [n, out / 2].
        residual: [n, out] in bfloat16, added to the result.
        dtype: of the result.

    Returns:
        [n, out].
    """
    n_rows, n_in = x.shape
    n_out = matrix.weight.shape[0] // (2 if gated else 1)
    assert n_rows <= MOST_ROWS
    assert x.dtype == mx.bfloat16
    unused = matrix.scales
    n_outs, threads = _split(n_out, n_in, gated, norm is not None)
    n_blocks = -(-n_out // (8 if gated else 8 * n_outs))
    (out,) = _multiply(
        [
            x,
            matrix.weight,
            matrix.scales,
            matrix.biases,
            unused if norm is None else norm.weight,
            unused if residual is None else residual,
        ],
        {
            "T": x.dtype,
            "TO": dtype,
            "IN": n_in,
            "BITS": matrix.bits,
            "GROUP": matrix.group,
            "EPS": 0.0 if norm is None else norm.eps,
            "OUTS": n_outs,
            "TILES": 1 if n_rows <= 16 else 2,
            "NORMED": int(norm is not None),
            "GATED": int(gated),
            "SUMMED": int(residual is not None),
            "THREADS": threads,
        },
        (n_blocks,),
        threads,
        [((n_rows, n_out), dtype)],
        n_rows,
        n_out,
    )
    return out


def _split(n_out: int, n_in: int, gated: bool, normed: bool) -> tuple[int, int]:
    """Rows of the matrix of a block in eights, and its threads. Wide outputs: each run of the input is used
    twice. Narrow ones: more blocks, of more warps, for which a norm would need too many registers."""
    n_outs = 2 if gated or n_out >= 4096 else 1
    n_blocks = -(-n_out // (8 if gated else 8 * n_outs))
    return n_outs, 512 if n_blocks <= 264 and n_in >= 2048 and not normed else 256
