"""The delta rule's serial parts as CUDA kernels: the walk over the chunks, and a whole decode step.

Everything around them stays array operations. Launches bound both: 64 x 64 products for each of 128
chunks in turn, or some fifteen tiny operations a layer and token.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx

_THREADS = 256
_TILE = 16  # value rows of the state that one block carries

# One block carries _TILE rows of one head's state through all chunks. Shared rows are padded by four
# floats: eight rows read side by side then fall on different banks.
_CARRY = """
constexpr int PAD = DK + 4;
__shared__ __align__(16) float matrix[C * PAD];
__shared__ __align__(16) float state[TILE * PAD];
__shared__ __align__(16) float fresh[C * TILE];
const int t = threadIdx.x;
const int n_chunks = sizes[0];
const int head = blockIdx.y;
const int first = blockIdx.x * TILE;
for (int i = t; i < TILE * DK; i += THREADS) {
  int d = i / DK, k = i % DK;
  state[d * PAD + k] = start[(head * DV + first + d) * DK + k];
}
for (int n = 0; n < n_chunks; ++n) {
  const int chunk = head * n_chunks + n;
  __syncthreads();
  for (int i = t; i < C * DK; i += THREADS)
    matrix[(i / DK) * PAD + i % DK] = w[(long long)chunk * C * DK + i];
  for (int i = t; i < TILE * DK; i += THREADS) {
    int d = i / DK, k = i % DK;
    starts[((long long)chunk * DV + first + d) * DK + k] = state[d * PAD + k];
  }
  __syncthreads();
  for (int item = t; item < C * 4; item += THREADS) {
    int c = item / 4, lane = item % 4;
    float sum[TILE / 4];
    for (int j = 0; j < TILE / 4; ++j) sum[j] = 0.0f;
    for (int k = 0; k < DK; k += 4) {
      float4 x = *reinterpret_cast<const float4*>(&matrix[c * PAD + k]);
      for (int j = 0; j < TILE / 4; ++j) {
        float4 s = *reinterpret_cast<const float4*>(&state[(lane + 4 * j) * PAD + k]);
        sum[j] += x.x * s.x + x.y * s.y + x.z * s.z + x.w * s.w;
      }
    }
    for (int j = 0; j < TILE / 4; ++j) {
      int d = lane + 4 * j;
      long long at = ((long long)chunk * C + c) * DV + first + d;
      float value = u[at] - sum[j];
      fresh[c * TILE + d] = value;
      news[at] = value;
    }
  }
  __syncthreads();
  for (int i = t; i < C * DK; i += THREADS)
    matrix[(i / DK) * PAD + i % DK] = to_end[(long long)chunk * C * DK + i];
  __syncthreads();
  const float kept = decay[chunk];
  for (int item = t; item < (TILE / 2) * (DK / 4); item += THREADS) {
    int k = (item % (DK / 4)) * 4, d = (item / (DK / 4)) * 2;
    float4 a = *reinterpret_cast<float4*>(&state[d * PAD + k]);
    float4 b = *reinterpret_cast<float4*>(&state[(d + 1) * PAD + k]);
    a.x *= kept; a.y *= kept; a.z *= kept; a.w *= kept;
    b.x *= kept; b.y *= kept; b.z *= kept; b.w *= kept;
    for (int c = 0; c < C; ++c) {
      float4 x = *reinterpret_cast<const float4*>(&matrix[c * PAD + k]);
      float p = fresh[c * TILE + d], q = fresh[c * TILE + d + 1];
      a.x += p * x.x; a.y += p * x.y; a.z += p * x.z; a.w += p * x.w;
      b.x += q * x.x; b.y += q * x.y; b.z += q * x.z; b.w += q * x.w;
    }
    *reinterpret_cast<float4*>(&state[d * PAD + k]) = a;
    *reinterpret_cast<float4*>(&state[(d + 1) * PAD + k]) = b;
  }
}
__syncthreads();
for (int i = t; i < TILE * DK; i += THREADS) {
  int d = i / DK, k = i % DK;
  last[(head * DV + first + d) * DK + k] = state[d * PAD + k];
}
"""

# One block does one head of one sequence: convolution, silu, norms, gates, recurrence, gated norm.
_STEP = """
constexpr int TAPS = 4;
constexpr int ROWS = 2 * HK * DK + HV * DV;
constexpr int WIDTH = ROWS + HV * DV + 2 * HV;
constexpr int WARPS = THREADS / 32;
__shared__ float q[DK];
__shared__ float k[DK];
__shared__ float v[DV];
__shared__ float out[DV];
__shared__ float partial[3 * WARPS];
const int t = threadIdx.x, lane = t % 32, warp = t / 32;
const int head = blockIdx.x, seq = blockIdx.y;
const int key_head = head / (HV / HK);
const bool owns_key = head % (HV / HK) == 0;
const long long row = (long long)seq * WIDTH;
for (int i = t; i < 2 * DK + DV; i += THREADS) {
  int channel = i < DK ? key_head * DK + i
              : i < 2 * DK ? (HK + key_head) * DK + i - DK
                           : 2 * HK * DK + head * DV + i - 2 * DK;
  float total = 0.0f;
  for (int tap = 0; tap < TAPS; ++tap) {
    T x = tap < TAPS - 1 ? window[((long long)seq * (TAPS - 1) + tap) * ROWS + channel] : rows[row + channel];
    total += static_cast<float>(x) * static_cast<float>(taps[tap * ROWS + channel]);
    if (tap > 0 && (i >= 2 * DK || owns_key))
      new_window[((long long)seq * (TAPS - 1) + tap - 1) * ROWS + channel] = x;
  }
  total = total / (1.0f + expf(-total));
  if (i < DK) q[i] = total;
  else if (i < 2 * DK) k[i - DK] = total;
  else v[i - 2 * DK] = total;
}
__syncthreads();
float qq = 0.0f, kk = 0.0f, qk = 0.0f;
for (int i = t; i < DK; i += THREADS) { qq += q[i] * q[i]; kk += k[i] * k[i]; qk += q[i] * k[i]; }
for (int step = 16; step > 0; step /= 2) {
  qq += __shfl_xor_sync(0xffffffff, qq, step);
  kk += __shfl_xor_sync(0xffffffff, kk, step);
  qk += __shfl_xor_sync(0xffffffff, qk, step);
}
if (lane == 0) { partial[warp] = qq; partial[WARPS + warp] = kk; partial[2 * WARPS + warp] = qk; }
__syncthreads();
qq = kk = qk = 0.0f;
for (int i = 0; i < WARPS; ++i) { qq += partial[i]; kk += partial[WARPS + i]; qk += partial[2 * WARPS + i]; }
const float q_scale = rsqrtf(qq + 1e-6f) * rsqrtf((float)DK);
const float k_scale = rsqrtf(kk + 1e-6f);
qk *= q_scale * k_scale;
const float b = static_cast<float>(rows[row + ROWS + HV * DV + head]);
const float a = static_cast<float>(rows[row + ROWS + HV * DV + HV + head]) + dt_bias[head];
const float softplus = a > 20.0f ? a : log1pf(expf(a));
const float kept = expf(decay_rate[head] * softplus);
const float strength = 1.0f / (1.0f + expf(-b));
for (int d = warp; d < DV; d += WARPS) {
  const long long at = (((long long)seq * HV + head) * DV + d) * DK;
  float with_k = 0.0f, with_q = 0.0f;
  float s[DK / 32];
  for (int j = 0; j < DK / 32; ++j) {
    s[j] = state[at + j * 32 + lane];
    with_k += s[j] * k[j * 32 + lane];
    with_q += s[j] * q[j * 32 + lane];
  }
  for (int step = 16; step > 0; step /= 2) {
    with_k += __shfl_xor_sync(0xffffffff, with_k, step);
    with_q += __shfl_xor_sync(0xffffffff, with_q, step);
  }
  const float error = strength * (v[d] - kept * with_k * k_scale);
  for (int j = 0; j < DK / 32; ++j)
    new_state[at + j * 32 + lane] = kept * s[j] + error * k[j * 32 + lane] * k_scale;
  if (lane == 0) out[d] = kept * with_q * q_scale + error * qk;
}
__syncthreads();
float square = 0.0f;
for (int i = t; i < DV; i += THREADS) square += out[i] * out[i];
for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
if (lane == 0) partial[warp] = square;
__syncthreads();
square = 0.0f;
for (int i = 0; i < WARPS; ++i) square += partial[i];
const float norm = rsqrtf(square / DV + eps[0]);
for (int i = t; i < DV; i += THREADS) {
  float z = static_cast<float>(rows[row + ROWS + head * DV + i]);
  float gate = z / (1.0f + expf(-z));
  mixed[((long long)seq * HV + head) * DV + i] =
      static_cast<T>(gate * out[i] * norm * static_cast<float>(norm_weight[i]));
}
"""


class StepWeights(NamedTuple):
    """What :func:`step` reads besides the sequences.

    Attributes:
        taps: [4, C] of the convolution; norm_weight: [Dv]; both in the model's dtype.
        decay_rate: -exp(A_log), [Hv]; dt_bias: [Hv]; eps: [1], of the gated norm; float32.
    """

    taps: mx.array
    decay_rate: mx.array
    dt_bias: mx.array
    norm_weight: mx.array
    eps: mx.array


def can_carry(size: int, key_head_dim: int, value_head_dim: int) -> bool:
    """Whether :func:`carry` takes these shapes: what it keeps in shared memory must fit 48 KiB."""
    floats = (size + _TILE) * (key_head_dim + 4) + size * _TILE
    return key_head_dim % 4 == 0 and value_head_dim % _TILE == 0 and 4 * floats <= 48 << 10


def can_step(conv_kernel: int, key_head_dim: int) -> bool:
    """Whether :func:`step` takes these shapes: a warp reads a row of keys in whole groups."""
    return conv_kernel == 4 and key_head_dim % 32 == 0


def carry(
    u: mx.array, w: mx.array, to_end: mx.array, decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """The serial part of the chunkwise form; names as in :mod:`model.layers.gdn`.

    Args:
        u: [Hv, N, C, Dv]; w, to_end: [Hv, N, C, Dk]; decay: [Hv, N]; state: [Hv, Dv, Dk]; float32.

    Returns:
        The states at the chunks' starts [Hv, N, Dv, Dk], V' [Hv, N, C, Dv], the last state.
    """
    n_heads, n_chunks, size, dv = u.shape
    dk = w.shape[-1]
    starts, news, last = _carry_kernel()(
        inputs=[u, w, to_end, decay, state, mx.array([n_chunks], mx.int32)],
        template=[("C", size), ("DK", dk), ("DV", dv), ("TILE", _TILE), ("THREADS", _THREADS)],
        grid=(dv // _TILE * _THREADS, n_heads, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(n_heads, n_chunks, dv, dk), u.shape, state.shape],
        output_dtypes=[mx.float32] * 3,
    )
    return starts, news, last


def step(rows: mx.array, window: mx.array, state: mx.array, weights: StepWeights) -> tuple[mx.array, ...]:
    """One token of B sequences through everything between a GDN layer's projections.

    Args:
        rows: [B, q | k | v | z | b | a] of the input projections.
        window: [B, 3, C]; state: [B, Hv, Dv, Dk].

    Returns:
        The input of the output projection [B, Hv * Dv], the window, the state.
    """
    n_seqs, n_heads, dv, dk = state.shape
    key_heads = (window.shape[-1] - n_heads * dv) // (2 * dk)
    out, new_window, new_state = _step_kernel()(
        inputs=[rows, window, state, *weights],
        template=[
            *[("T", rows.dtype), ("HK", key_heads), ("HV", n_heads)],
            *[("DK", dk), ("DV", dv), ("THREADS", _THREADS)],
        ],
        grid=(n_heads * _THREADS, n_seqs, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(n_seqs, n_heads * dv), window.shape, state.shape],
        output_dtypes=[rows.dtype, window.dtype, mx.float32],
    )
    return out, new_window, new_state


@cache
def _carry_kernel() -> Any:
    return mx.fast.cuda_kernel(
        name="gdn_carry",
        input_names=["u", "w", "to_end", "decay", "start", "sizes"],
        output_names=["starts", "news", "last"],
        source=_CARRY,
    )


@cache
def _step_kernel() -> Any:
    return mx.fast.cuda_kernel(
        name="gdn_step",
        input_names=["rows", "window", "state", *StepWeights._fields],
        output_names=["mixed", "new_window", "new_state"],
        source=_STEP,
    )
