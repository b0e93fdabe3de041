"""One token, or a few, of a GDN layer between its projections, in one kernel."""

from __future__ import annotations

import mlx.core as mx

from model.devices.cuda.kernels.gdn_prompt import GdnShape, GdnWeights
from model.devices.cuda.kernels.kernel import Kernel

_THREADS = 512

# One block does one head of one sequence: convolution, silu, norms, gates, recurrence, gated norm. A warp
# asks for its rows of the state first and works on the rest while they come.
_STEP = """
constexpr int WARPS = THREADS / 32;
constexpr int ROWS = (DV + WARPS - 1) / WARPS;
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
const long long first = ((long long)seq * HV + head) * DV * DK;
float s[ROWS][DK / 32];
#pragma unroll
for (int r = 0; r < ROWS; ++r)
  for (int j = 0; j < DK / 32; ++j) {
    const int d = r * WARPS + warp;
    s[r][j] = state[first + (d < DV ? d : 0) * DK + j * 32 + lane];
  }
for (int i = t; i < 2 * DK + DV; i += THREADS) {
  int channel = i < DK ? key_head * DK + i
              : i < 2 * DK ? (HK + key_head) * DK + i - DK
                           : 2 * HK * DK + head * DV + i - 2 * DK;
  float total = 0.0f;
  for (int tap = 0; tap < 4; ++tap) {
    T x = tap < 3 ? window[((long long)seq * (3) + tap) * CH + channel] : rows[row + channel];
    total += static_cast<float>(x) * static_cast<float>(taps[tap * CH + channel]);
    if (tap > 0 && (i >= 2 * DK || owns_key))
      new_window[((long long)seq * (3) + tap - 1) * CH + channel] = x;
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
const float b = static_cast<float>(rows[row + CH + HV * DV + head]);
const float a = static_cast<float>(rows[row + CH + HV * DV + HV + head]) + dt_bias[head];
const float softplus = a > 20.0f ? a : log1pf(expf(a));
const float kept = expf(decay_rate[head] * softplus);
const float strength = 1.0f / (1.0f + expf(-b));
float with_k[ROWS], with_q[ROWS];
#pragma unroll
for (int r = 0; r < ROWS; ++r) {
  with_k[r] = with_q[r] = 0.0f;
  for (int j = 0; j < DK / 32; ++j) {
    with_k[r] += s[r][j] * k[j * 32 + lane];
    with_q[r] += s[r][j] * q[j * 32 + lane];
  }
}
#pragma unroll
for (int step = 16; step > 0; step /= 2)
  for (int r = 0; r < ROWS; ++r) {
    with_k[r] += __shfl_xor_sync(0xffffffff, with_k[r], step);
    with_q[r] += __shfl_xor_sync(0xffffffff, with_q[r], step);
  }
#pragma unroll
for (int r = 0; r < ROWS; ++r) {
  const int d = r * WARPS + warp;
  if (d >= DV) continue;
  const float error = strength * (v[d] - kept * with_k[r] * k_scale);
  for (int j = 0; j < DK / 32; ++j)
    new_state[first + d * DK + j * 32 + lane] = kept * s[r][j] + error * k[j * 32 + lane] * k_scale;
  if (lane == 0) out[d] = kept * with_q[r] * q_scale + error * qk;
}
__syncthreads();
float square = 0.0f;
for (int i = t; i < DV; i += THREADS) square += out[i] * out[i];
for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
if (lane == 0) partial[warp] = square;
__syncthreads();
square = 0.0f;
for (int i = 0; i < WARPS; ++i) square += partial[i];
const float norm = rsqrtf(square / DV + EPS);
for (int i = t; i < DV; i += THREADS) {
  float z = static_cast<float>(rows[row + CH + head * DV + i]);
  float gate = z / (1.0f + expf(-z));
  mixed[((long long)seq * HV + head) * DV + i] =
      static_cast<T>(gate * out[i] * norm * static_cast<float>(norm_weight[i]));
}
"""

# The same over T tokens one after the other, the state in registers all the while. Of the states on the way
# those are written that are wanted, with the windows that belong to them.
_FEW = """
constexpr int WARPS = THREADS / 32;
constexpr int ROWS = (DV + WARPS - 1) / WARPS;
__shared__ float q[DK];
__shared__ float k[DK];
__shared__ float v[DV];
__shared__ float out[DV];
__shared__ float partial[3 * WARPS];
__shared__ float squares[WARPS];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int head = blockIdx.x, seq = blockIdx.y, n_seqs = gridDim.y;
const int key_head = head / (HV / HK);
const bool owns_key = head % (HV / HK) == 0;
const long long first_row = (long long)seq * n_tokens;
const long long first = ((long long)seq * HV + head) * DV * DK;
float s[ROWS][DK / 32];
#pragma unroll
for (int r = 0; r < ROWS; ++r)
  for (int j = 0; j < DK / 32; ++j) {
    const int d = r * WARPS + warp;
    s[r][j] = state[first + (d < DV ? d : 0) * DK + j * 32 + lane];
  }
int slot = 0, next = wanted[0];
for (int t = 0; t < n_tokens; ++t) {
  const bool is_wanted = next == t + 1;
  const long long row = (first_row + t) * WIDTH;
  for (int i = threadIdx.x; i < 2 * DK + DV; i += THREADS) {
    const int channel = i < DK ? key_head * DK + i
                      : i < 2 * DK ? (HK + key_head) * DK + i - DK
                                   : 2 * HK * DK + head * DV + i - 2 * DK;
    float total = 0.0f;
    for (int tap = 0; tap < 4; ++tap) {
      const int past = t + tap - 3;
      T x = past < 0 ? window[((long long)seq * 3 + past + 3) * CH + channel]
                     : rows[(first_row + past) * WIDTH + channel];
      total += static_cast<float>(x) * static_cast<float>(taps[tap * CH + channel]);
      if (is_wanted && tap > 0 && (i >= 2 * DK || owns_key))
        windows[(((long long)slot * n_seqs + seq) * 3 + tap - 1) * CH + channel] = x;
    }
    total = total / (1.0f + expf(-total));
    if (i < DK) q[i] = total;
    else if (i < 2 * DK) k[i - DK] = total;
    else v[i - 2 * DK] = total;
  }
  __syncthreads();
  float qq = 0.0f, kk = 0.0f, qk = 0.0f;
  for (int i = threadIdx.x; i < DK; i += THREADS) { qq += q[i] * q[i]; kk += k[i] * k[i]; qk += q[i] * k[i]; }
  for (int step = 16; step > 0; step /= 2) {
    qq += __shfl_xor_sync(0xffffffff, qq, step);
    kk += __shfl_xor_sync(0xffffffff, kk, step);
    qk += __shfl_xor_sync(0xffffffff, qk, step);
  }
  if (lane == 0) { partial[warp] = qq; partial[WARPS + warp] = kk; partial[2 * WARPS + warp] = qk; }
  __syncthreads();
  qq = kk = qk = 0.0f;
  for (int i = 0; i < WARPS; ++i) {
    qq += partial[i];
    kk += partial[WARPS + i];
    qk += partial[2 * WARPS + i];
  }
  const float q_scale = rsqrtf(qq + 1e-6f) * rsqrtf((float)DK);
  const float k_scale = rsqrtf(kk + 1e-6f);
  qk *= q_scale * k_scale;
  const float b = static_cast<float>(rows[row + CH + HV * DV + head]);
  const float a = static_cast<float>(rows[row + CH + HV * DV + HV + head]) + dt_bias[head];
  const float softplus = a > 20.0f ? a : log1pf(expf(a));
  const float kept = expf(decay_rate[head] * softplus);
  const float strength = 1.0f / (1.0f + expf(-b));
  float with_k[ROWS], with_q[ROWS];
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    with_k[r] = with_q[r] = 0.0f;
    for (int j = 0; j < DK / 32; ++j) {
      with_k[r] += s[r][j] * k[j * 32 + lane];
      with_q[r] += s[r][j] * q[j * 32 + lane];
    }
  }
  #pragma unroll
  for (int step = 16; step > 0; step /= 2)
    for (int r = 0; r < ROWS; ++r) {
      with_k[r] += __shfl_xor_sync(0xffffffff, with_k[r], step);
      with_q[r] += __shfl_xor_sync(0xffffffff, with_q[r], step);
    }
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int d = r * WARPS + warp;
    if (d >= DV) continue;
    const float error = strength * (v[d] - kept * with_k[r] * k_scale);
    for (int j = 0; j < DK / 32; ++j) s[r][j] = kept * s[r][j] + error * k[j * 32 + lane] * k_scale;
    if (lane == 0) out[d] = kept * with_q[r] * q_scale + error * qk;
  }
  if (is_wanted) {
    const long long at = (((long long)slot * n_seqs + seq) * HV + head) * DV * DK;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int d = r * WARPS + warp;
      if (d >= DV) continue;
      for (int j = 0; j < DK / 32; ++j) states[at + d * DK + j * 32 + lane] = s[r][j];
    }
    ++slot;
    next = slot < n_slots ? wanted[slot] : 0;
  }
  __syncthreads();
  float square = 0.0f;
  for (int i = threadIdx.x; i < DV; i += THREADS) square += out[i] * out[i];
  for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
  if (lane == 0) squares[warp] = square;
  __syncthreads();
  square = 0.0f;
  for (int i = 0; i < WARPS; ++i) square += squares[i];
  const float norm = rsqrtf(square / DV + EPS);
  for (int i = threadIdx.x; i < DV; i += THREADS) {
    const float z = static_cast<float>(rows[row + CH + head * DV + i]);
    const float gate = z / (1.0f + expf(-z));
    mixed[((first_row + t) * HV + head) * DV + i] =
        static_cast<T>(gate * out[i] * norm * static_cast<float>(norm_weight[i]));
  }
}
"""

_step = Kernel(
    "gdn_step",
    ["rows", "window", "state", *GdnWeights._fields],
    ["mixed", "new_window", "new_state"],
    _STEP,
)
_few = Kernel(
    "gdn_few",
    ["rows", "window", "state", "wanted", *GdnWeights._fields],
    ["mixed", "windows", "states"],
    _FEW,
    numbers=["n_tokens", "n_slots"],
)


def step(
    rows: mx.array, window: mx.array, state: mx.array, shape: GdnShape, weights: GdnWeights
) -> tuple[mx.array, mx.array, mx.array]:
    """One token of each of B sequences.

    Args:
        rows: [B, q | k | v | z | b | a] of the input projections.
        window: [B, 3, C]; state: [B, Hv, Dv, Dk].

    Returns:
        The input of the output projection [B, Hv * Dv], the window, the state.
    """
    n_seqs = rows.shape[0]
    out, new_window, new_state = _step(
        [rows, window, state, *weights],
        shape.constants(rows.dtype) | {"THREADS": _THREADS},
        (shape.n_value_heads, n_seqs),
        _THREADS,
        [
            ((n_seqs, shape.n_value_heads * shape.value_head_dim), rows.dtype),
            (window.shape, window.dtype),
            (state.shape, mx.float32),
        ],
    )
    return out, new_window, new_state


def few(
    rows: mx.array,
    window: mx.array,
    state: mx.array,
    wanted: mx.array,
    n_slots: int,
    shape: GdnShape,
    weights: GdnWeights,
) -> tuple[mx.array, mx.array, mx.array]:
    """T tokens of each of B sequences.

    Args:
        rows: [B * T, q | k | v | z | b | a] of the input projections.
        window: [B, 3, C]; state: [B, Hv, Dv, Dk].
        wanted: [S or more] int32, ascending: token counts in 1..T after which the state is wanted, then
            zeros. MLX keeps arrays of one or two numbers in the host's memory, where every block would fetch
            them: there had better be more.
        n_slots: S.

    Returns:
        The input of the output projection [B * T, Hv * Dv], the windows [S, B, 3, C], the states
        [S, B, Hv, Dv, Dk].
    """
    n_seqs = window.shape[0]
    out, windows, states = _few(
        [rows, window, state, wanted, *weights],
        shape.constants(rows.dtype) | {"THREADS": _THREADS},
        (shape.n_value_heads, n_seqs),
        _THREADS,
        [
            ((rows.shape[0], shape.n_value_heads * shape.value_head_dim), rows.dtype),
            ((n_slots, *window.shape), window.dtype),
            ((n_slots, *state.shape), mx.float32),
        ],
        rows.shape[0] // n_seqs,
        n_slots,
    )
    return out, windows, states
