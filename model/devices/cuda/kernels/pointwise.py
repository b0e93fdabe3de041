"""What stands between the matrix products of every layer: sum and norm in one pass, and SwiGLU."""

from __future__ import annotations

import mlx.core as mx

from model.devices.cuda.kernels.kernel import Kernel

_THREADS = 256

# One block does one row; a thread keeps its numbers in registers between the two passes.
_ADD_NORM = """
constexpr int WARPS = THREADS / 32;
constexpr int PARTS = (H / 4 + THREADS - 1) / THREADS;
struct __align__(4 * sizeof(T)) Four { T at[4]; };
__shared__ float partial[WARPS];
const int t = threadIdx.x, lane = t % 32, warp = t / 32;
const long long row = (long long)blockIdx.x * H;
float values[PARTS][4];
float square = 0.0f;
#pragma unroll
for (int i = 0; i < PARTS; ++i) {
  const int at = 4 * (i * THREADS + t);
  for (int j = 0; j < 4; ++j) values[i][j] = 0.0f;
  if (at < H) {
    const Four a = *reinterpret_cast<const Four*>(&x[row + at]);
    const Four b = *reinterpret_cast<const Four*>(&y[row + at]);
    Four sum;
    for (int j = 0; j < 4; ++j) {
      sum.at[j] = static_cast<T>(static_cast<float>(a.at[j]) + static_cast<float>(b.at[j]));
      values[i][j] = static_cast<float>(sum.at[j]);
      square += values[i][j] * values[i][j];
    }
    *reinterpret_cast<Four*>(&total[row + at]) = sum;
  }
}
for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
if (lane == 0) partial[warp] = square;
__syncthreads();
square = 0.0f;
for (int i = 0; i < WARPS; ++i) square += partial[i];
const float scale = rsqrtf(square / H + EPS);
#pragma unroll
for (int i = 0; i < PARTS; ++i) {
  const int at = 4 * (i * THREADS + t);
  if (at < H) {
    const Four w = *reinterpret_cast<const Four*>(&weight[at]);
    Four out;
    for (int j = 0; j < 4; ++j)
      out.at[j] = static_cast<T>(values[i][j] * scale * static_cast<float>(w.at[j]));
    *reinterpret_cast<Four*>(&normed[row + at]) = out;
  }
}
"""

_SWIGLU = """
struct __align__(4 * sizeof(T)) Four { T at[4]; };
const int column = 4 * (blockIdx.x * THREADS + threadIdx.x);
const long long row = blockIdx.y;
if (column >= F) return;
const Four gate = *reinterpret_cast<const Four*>(&joined[row * 2 * F + column]);
const Four up = *reinterpret_cast<const Four*>(&joined[row * 2 * F + F + column]);
Four y;
for (int j = 0; j < 4; ++j) {
  const float g = static_cast<float>(gate.at[j]);
  y.at[j] = static_cast<T>(g / (1.0f + expf(-g)) * static_cast<float>(up.at[j]));
}
*reinterpret_cast<Four*>(&out[row * F + column]) = y;
"""

_add_norm = Kernel("add_norm", ["x", "y", "weight"], ["total", "normed"], _ADD_NORM)
_swiglu = Kernel("swiglu", ["joined"], ["out"], _SWIGLU)


def add_norm(x: mx.array, y: mx.array, weight: mx.array, eps: float) -> tuple[mx.array, mx.array]:
    """``x + y`` and its RMS norm times ``weight``; x, y [..., H], weight [H] in one dtype, H a multiple of
    4."""
    width = x.shape[-1]
    total, normed = _add_norm(
        [x, y, weight],
        {"T": x.dtype, "H": width, "EPS": eps, "THREADS": _THREADS},
        (x.size // width,),
        _THREADS,
        [(x.shape, x.dtype), (x.shape, x.dtype)],
    )
    return total, normed


def swiglu(joined: mx.array) -> mx.array:
    """silu(gate) * up: [..., gate | up] to [..., F], F a multiple of 4."""
    width = joined.shape[-1] // 2
    n_rows = joined.size // (2 * width)
    (out,) = _swiglu(
        [joined],
        {"T": joined.dtype, "F": width, "THREADS": _THREADS},
        (-(-width // (4 * _THREADS)), n_rows),
        _THREADS,
        [((*joined.shape[:-1], width), joined.dtype)],
    )
    return out
