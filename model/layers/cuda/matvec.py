"""A few rows through a matrix, at the speed at which the matrix can be read."""

from __future__ import annotations

import mlx.core as mx

from model.layers.cuda.kernel import Kernel

MOST_ROWS = 4  # from five rows on MLX's matrix product is as fast
_WARPS = 8

# A warp does ROWS outputs for all N input rows: 16 bytes a lane, ROWS reads in flight.
_MATVEC = """
constexpr int VECTOR = 16 / sizeof(T);
struct __align__(16) Vector { T at[VECTOR]; };
const int lane = threadIdx.x % 32;
const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * ROWS;
if (first >= OUT) return;
float sum[ROWS][N];
#pragma unroll
for (int r = 0; r < ROWS; ++r)
  for (int n = 0; n < N; ++n) sum[r][n] = 0.0f;
const T* source[ROWS];
#pragma unroll
for (int r = 0; r < ROWS; ++r) source[r] = &weight[(long long)(first + r < OUT ? first + r : OUT - 1) * IN];
#pragma unroll 4
for (int k = lane * VECTOR; k < IN; k += 32 * VECTOR) {
  Vector w[ROWS];
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) w[r] = *reinterpret_cast<const Vector*>(source[r] + k);
  #pragma unroll
  for (int n = 0; n < N; ++n) {
    const Vector v = *reinterpret_cast<const Vector*>(&x[n * IN + k]);
    for (int j = 0; j < VECTOR; ++j) {
      const float value = static_cast<float>(v.at[j]);
      for (int r = 0; r < ROWS; ++r) sum[r][n] += static_cast<float>(w[r].at[j]) * value;
    }
  }
}
#pragma unroll
for (int r = 0; r < ROWS; ++r)
  for (int n = 0; n < N; ++n) {
    float total = sum[r][n];
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
    if (lane == 0 && first + r < OUT) y[n * OUT + first + r] = static_cast<T>(total);
  }
"""

_matvec = Kernel("matvec", ["x", "weight"], ["y"], _MATVEC)


def can_multiply(x: mx.array, weight: mx.array) -> bool:
    """Whether :func:`matvec` takes them: at most four rows of one dtype, read in whole vectors."""
    width = x.shape[-1]
    return x.dtype == weight.dtype and x.size <= MOST_ROWS * width and width * x.dtype.size % 16 == 0


def matvec(x: mx.array, weight: mx.array) -> mx.array:
    """x [..., in] times weight [out, in] to [..., out], summed in float32."""
    n_out, n_in = weight.shape
    n_rows = x.size // n_in
    # Large matrices: more reads in flight. Small ones: more warps.
    per_warp = 4 if n_out >= 16384 else 2 if n_out >= 4096 else 1
    (out,) = _matvec(
        [x, weight],
        {"T": x.dtype, "IN": n_in, "OUT": n_out, "N": n_rows, "ROWS": per_warp, "WARPS": _WARPS},
        (-(-n_out // (_WARPS * per_warp)),),
        32 * _WARPS,
        [((*x.shape[:-1], n_out), x.dtype)],
    )
    return out
