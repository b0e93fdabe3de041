"""A GDN layer over many tokens, between its projections, in four kernels; a fifth takes states on the way.

Names as in :mod:`model.layers.delta_rule`, of which this is the same mathematics. Two things differ. Each
chunk's (I + A) is not inverted: U and W come by forward substitution, a column a thread. And everything
from the rows of the input projections to those of the output projection is computed in float32 where it is
used, so that no q, k, decay matrix or output is written in float32 in between.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from model.devices.cuda.kernels.kernel import Constants, Kernel
from model.layers.ragged import CHUNK

TAPS = 4
_RUN = 16  # tokens that one thread of the convolution goes through
_TILE = 16  # value rows of the state that one block carries
_THREADS = 256
_SHARED_BYTES = 48 << 10

# Two channels a thread, some tokens each: depthwise over four rows, then silu.
_CONVOLVE = """
struct __align__(2 * sizeof(T)) Pair { T x, y; };
const int channel = 2 * (blockIdx.x * THREADS + threadIdx.x);
if (channel >= CH) return;
const int first = blockIdx.y * RUN;
const int end = first + RUN < n_tokens ? first + RUN : n_tokens;
float tap[4][2], seen[4][2];
for (int i = 0; i < 4; ++i) {
  Pair w = *reinterpret_cast<const Pair*>(&taps[i * CH + channel]);
  tap[i][0] = static_cast<float>(w.x);
  tap[i][1] = static_cast<float>(w.y);
}
for (int i = 0; i < 3; ++i) {
  const int t = first - 3 + i;
  const T* source = t < 0 ? &window[(t + 3) * CH + channel] : &rows[(long long)t * WIDTH + channel];
  Pair x = *reinterpret_cast<const Pair*>(source);
  seen[i][0] = static_cast<float>(x.x);
  seen[i][1] = static_cast<float>(x.y);
}
for (int t = first; t < end; ++t) {
  Pair x = *reinterpret_cast<const Pair*>(&rows[(long long)t * WIDTH + channel]);
  seen[3][0] = static_cast<float>(x.x);
  seen[3][1] = static_cast<float>(x.y);
  float total[2];
  for (int j = 0; j < 2; ++j) {
    total[j] = 0.0f;
    for (int i = 0; i < 4; ++i) total[j] += seen[i][j] * tap[i][j];
    total[j] = total[j] / (1.0f + expf(-total[j]));
    for (int i = 0; i < 3; ++i) seen[i][j] = seen[i + 1][j];
  }
  Pair y = {static_cast<T>(total[0]), static_cast<T>(total[1])};
  *reinterpret_cast<Pair*>(&mixed[(long long)t * CH + channel]) = y;
}
"""

# One block does one chunk of one value head: gates, norms of the keys, A, and the substitution for
# U (columns of V) and W (columns of K), each thread with its column in registers.
_SOLVE = """
constexpr int PAD = DK + 4;
constexpr int WARPS = THREADS / 32;
struct __align__(4 * sizeof(T)) Four { T at[4]; };
__shared__ __align__(16) T keys[C * PAD];
__shared__ __align__(16) float a[C * C];
__shared__ float norm[C];
__shared__ float strength[C];
__shared__ float total[C];
const int t = threadIdx.x, lane = t % 32, warp = t / 32;
const int head = blockIdx.y, key_head = head / (HV / HK);
const int first = blockIdx.x * C;
const long long chunk = (long long)head * gridDim.x + blockIdx.x;
for (int i = t; i < C * DK / 4; i += THREADS) {
  const int r = i / (DK / 4), c = i % (DK / 4) * 4;
  Four x;
  for (int j = 0; j < 4; ++j) x.at[j] = static_cast<T>(0.0f);
  if (first + r < n_tokens)
    x = *reinterpret_cast<const Four*>(&mixed[(long long)(first + r) * CH + (HK + key_head) * DK + c]);
  *reinterpret_cast<Four*>(&keys[r * PAD + c]) = x;
}
if (t < C) {
  float g = 0.0f, b = 0.0f;
  if (first + t < n_tokens) {
    const T* gates = &rows[(long long)(first + t) * WIDTH + CH + HV * DV];
    b = 1.0f / (1.0f + expf(-static_cast<float>(gates[head])));
    const float x = static_cast<float>(gates[HV + head]) + dt_bias[head];
    g = decay_rate[head] * (x > 20.0f ? x : log1pf(expf(x)));
  }
  strength[t] = b;
  total[t] = g;
}
__syncthreads();
for (int r = warp; r < C; r += WARPS) {
  float square = 0.0f;
  for (int c = lane; c < DK; c += 32) {
    const float x = static_cast<float>(keys[r * PAD + c]);
    square += x * x;
  }
  for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
  if (lane == 0) norm[r] = rsqrtf(square + 1e-6f);
}
if (warp == 0) {
  float before = 0.0f;
  for (int base = 0; base < C; base += 32) {
    float sum = total[base + lane];
    for (int step = 1; step < 32; step *= 2) {
      const float left = __shfl_up_sync(0xffffffff, sum, step);
      if (lane >= step) sum += left;
    }
    sum += before;
    total[base + lane] = sum;
    before = __shfl_sync(0xffffffff, sum, 31);
  }
}
__syncthreads();
if (t < C) totals[chunk * C + t] = total[t];
for (int tile = t; tile < 256; tile += THREADS) {
  const int ti = tile / 16, tj = tile % 16;
  float dot[4][4];
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) dot[r][c] = 0.0f;
  for (int k = 0; k < DK; k += 4) {
    Four x[4], y[4];
    for (int r = 0; r < 4; ++r) {
      x[r] = *reinterpret_cast<const Four*>(&keys[(ti + 16 * r) * PAD + k]);
      y[r] = *reinterpret_cast<const Four*>(&keys[(tj + 16 * r) * PAD + k]);
    }
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c <= r; ++c)
        for (int j = 0; j < 4; ++j)
          dot[r][c] += static_cast<float>(x[r].at[j]) * static_cast<float>(y[c].at[j]);
  }
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) {
      const int i = ti + 16 * r, j = tj + 16 * c;
      a[i * C + j] =
          j < i ? strength[i] * norm[i] * norm[j] * dot[r][c] * expf(total[i] - total[j]) : 0.0f;
    }
}
__syncthreads();
const bool is_value = t < DV;
const int column = is_value ? t : t - DV;
float x[C];
#pragma unroll
for (int i = 0; i < C; ++i) {
  if (is_value) {
    const T* source = &mixed[(long long)(first + i) * CH + 2 * HK * DK + head * DV + column];
    x[i] = first + i < n_tokens ? strength[i] * static_cast<float>(*source) : 0.0f;
  } else {
    const float k = norm[i] * static_cast<float>(keys[i * PAD + column]);
    to_end[(chunk * C + i) * DK + column] = expf(total[C - 1] - total[i]) * k;
    x[i] = strength[i] * expf(total[i]) * k;
  }
}
#pragma unroll
for (int i = 1; i < C; ++i) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  #pragma unroll
  for (int j = 0; j < i; j += 4) {
    const float4 row = *reinterpret_cast<const float4*>(&a[i * C + j]);
    sum[0] += row.x * x[j];
    if (j + 1 < i) sum[1] += row.y * x[j + 1];
    if (j + 2 < i) sum[2] += row.z * x[j + 2];
    if (j + 3 < i) sum[3] += row.w * x[j + 3];
  }
  x[i] -= (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
float* out = is_value ? &u[chunk * C * DV + column] : &w[chunk * C * DK + column];
const int stride = is_value ? DV : DK;
#pragma unroll
for (int i = 0; i < C; ++i) out[i * stride] = x[i];
"""

# One block carries TILE rows of one head's state through the chunks of one sequence; while it computes with
# one matrix, the next is on its way to the registers. Shared rows are padded by four floats: eight rows read
# side by side then fall on different banks.
_CARRY = """
constexpr int PAD = DK + 4;
constexpr int PARTS = C * DK / 4 / THREADS;
static_assert(THREADS == 4 * C, "a thread has one row of W and four value rows");
__shared__ __align__(16) float matrix[C * PAD];
__shared__ __align__(16) float state[TILE * PAD];
__shared__ __align__(16) float fresh[C * TILE];
const int t = threadIdx.x;
const int head = blockIdx.y;
const int first = blockIdx.x % (DV / TILE) * TILE;
const int row = t / 4, lane = t % 4;
for (int i = t; i < TILE * DK; i += THREADS) {
  const int d = i / DK, k = i % DK;
  state[d * PAD + k] = start[((sequence * HV + head) * DV + first + d) * DK + k];
}
float4 next[PARTS];
float value[TILE / 4];
const float4* source = reinterpret_cast<const float4*>(&w[((long long)head * n_chunks + begin) * C * DK]);
for (int i = 0; i < PARTS; ++i) next[i] = source[i * THREADS + t];
for (int n = begin; n < end; ++n) {
  const long long chunk = (long long)head * n_chunks + n;
  __syncthreads();
  for (int i = 0; i < PARTS; ++i) {
    const int at = 4 * (i * THREADS + t);
    *reinterpret_cast<float4*>(&matrix[(at / DK) * PAD + at % DK]) = next[i];
  }
  for (int i = t; i < TILE * DK; i += THREADS) {
    const int d = i / DK, k = i % DK;
    starts[(chunk * DV + first + d) * DK + k] = state[d * PAD + k];
  }
  for (int j = 0; j < TILE / 4; ++j) value[j] = u[(chunk * C + row) * DV + first + lane + 4 * j];
  source = reinterpret_cast<const float4*>(&to_end[chunk * C * DK]);
  for (int i = 0; i < PARTS; ++i) next[i] = source[i * THREADS + t];
  const float kept = expf(totals[chunk * C + C - 1]);
  __syncthreads();
  for (int k = 0; k < DK; k += 4) {
    const float4 x = *reinterpret_cast<const float4*>(&matrix[row * PAD + k]);
    for (int j = 0; j < TILE / 4; ++j) {
      const float4 s = *reinterpret_cast<const float4*>(&state[(lane + 4 * j) * PAD + k]);
      value[j] -= x.x * s.x + x.y * s.y + x.z * s.z + x.w * s.w;
    }
  }
  for (int j = 0; j < TILE / 4; ++j) {
    fresh[row * TILE + lane + 4 * j] = value[j];
    news[(chunk * C + row) * DV + first + lane + 4 * j] = value[j];
  }
  __syncthreads();
  for (int i = 0; i < PARTS; ++i) {
    const int at = 4 * (i * THREADS + t);
    *reinterpret_cast<float4*>(&matrix[(at / DK) * PAD + at % DK]) = next[i];
  }
  if (n + 1 < end) {
    source = reinterpret_cast<const float4*>(&w[(chunk + 1) * C * DK]);
    for (int i = 0; i < PARTS; ++i) next[i] = source[i * THREADS + t];
  }
  __syncthreads();
  for (int item = t; item < (TILE / 2) * (DK / 4); item += THREADS) {
    const int k = (item % (DK / 4)) * 4, d = (item / (DK / 4)) * 2;
    float4 a = *reinterpret_cast<float4*>(&state[d * PAD + k]);
    float4 b = *reinterpret_cast<float4*>(&state[(d + 1) * PAD + k]);
    a.x *= kept; a.y *= kept; a.z *= kept; a.w *= kept;
    b.x *= kept; b.y *= kept; b.z *= kept; b.w *= kept;
    for (int c = 0; c < C; ++c) {
      const float4 x = *reinterpret_cast<const float4*>(&matrix[c * PAD + k]);
      const float p = fresh[c * TILE + d], q = fresh[c * TILE + d + 1];
      a.x += p * x.x; a.y += p * x.y; a.z += p * x.z; a.w += p * x.w;
      b.x += q * x.x; b.y += q * x.y; b.z += q * x.z; b.w += q * x.w;
    }
    *reinterpret_cast<float4*>(&state[d * PAD + k]) = a;
    *reinterpret_cast<float4*>(&state[(d + 1) * PAD + k]) = b;
  }
}
__syncthreads();
for (int i = t; i < TILE * DK; i += THREADS) {
  const int d = i / DK, k = i % DK;
  last[((sequence * HV + head) * DV + first + d) * DK + k] = state[d * PAD + k];
}
"""
_ALONE = "const int sequence = 0, begin = 0, end = n_chunks;"
_BESIDE_OTHERS = """
const int sequence = blockIdx.x / (DV / TILE);
const int begin = first_chunks[sequence], end = first_chunks[sequence + 1];
"""

# One block does one chunk of one value head: O = exp(G) Q S^T + (Q K^T * D) V', then the gated norm. Each
# thread has four rows by DV / 16 columns of it.
_ATTEND = """
constexpr int PAD = DK + 4;
constexpr int SCORES = C + 4;
constexpr int STEP = 16;
constexpr int LINE = STEP + 4;
constexpr int COLUMNS = DV / 16;
constexpr int WARPS = THREADS / 32;
constexpr int SPACE = sizeof(T) * C * PAD > 4 * C * SCORES ? sizeof(T) * C * PAD : 4 * C * SCORES;
static_assert(THREADS == 256, "16 x 16 threads tile the chunk");
struct __align__(4 * sizeof(T)) Four { T at[4]; };
__shared__ __align__(16) T queries[C * PAD];
__shared__ __align__(16) unsigned char space[SPACE];
__shared__ __align__(16) float tile[DV * LINE];
__shared__ float q_norm[C];
__shared__ float k_norm[C];
__shared__ float total[C];
T* keys = reinterpret_cast<T*>(space);
float* scores = reinterpret_cast<float*>(space);
const int t = threadIdx.x, lane = t % 32, warp = t / 32;
const int head = blockIdx.y, key_head = head / (HV / HK);
const int first = blockIdx.x * C;
const long long chunk = (long long)head * gridDim.x + blockIdx.x;
for (int i = t; i < C * DK / 4; i += THREADS) {
  const int r = i / (DK / 4), c = i % (DK / 4) * 4;
  Four q, k;
  for (int j = 0; j < 4; ++j) q.at[j] = k.at[j] = static_cast<T>(0.0f);
  if (first + r < n_tokens) {
    const T* source = &mixed[(long long)(first + r) * CH + key_head * DK + c];
    q = *reinterpret_cast<const Four*>(source);
    k = *reinterpret_cast<const Four*>(source + HK * DK);
  }
  *reinterpret_cast<Four*>(&queries[r * PAD + c]) = q;
  *reinterpret_cast<Four*>(&keys[r * PAD + c]) = k;
}
if (t < C) total[t] = totals[chunk * C + t];
__syncthreads();
for (int r = warp; r < C; r += WARPS) {
  float qq = 0.0f, kk = 0.0f;
  for (int c = lane; c < DK; c += 32) {
    const float q = static_cast<float>(queries[r * PAD + c]), k = static_cast<float>(keys[r * PAD + c]);
    qq += q * q;
    kk += k * k;
  }
  for (int step = 16; step > 0; step /= 2) {
    qq += __shfl_xor_sync(0xffffffff, qq, step);
    kk += __shfl_xor_sync(0xffffffff, kk, step);
  }
  if (lane == 0) {
    q_norm[r] = rsqrtf(qq + 1e-6f) * rsqrtf((float)DK);
    k_norm[r] = rsqrtf(kk + 1e-6f);
  }
}
__syncthreads();
const int ti = t / 16, tj = t % 16;
float dot[4][4];
#pragma unroll
for (int r = 0; r < 4; ++r)
  for (int c = 0; c < 4; ++c) dot[r][c] = 0.0f;
for (int k = 0; k < DK; k += 4) {
  Four x[4], y[4];
  #pragma unroll
  for (int r = 0; r < 4; ++r) {
    x[r] = *reinterpret_cast<const Four*>(&queries[(ti + 16 * r) * PAD + k]);
    y[r] = *reinterpret_cast<const Four*>(&keys[(tj + 16 * r) * PAD + k]);
  }
  #pragma unroll
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c <= r; ++c)
      for (int j = 0; j < 4; ++j)
        dot[r][c] += static_cast<float>(x[r].at[j]) * static_cast<float>(y[c].at[j]);
}
__syncthreads();
#pragma unroll
for (int r = 0; r < 4; ++r)
  for (int c = 0; c < 4; ++c) {
    const int i = ti + 16 * r, j = tj + 16 * c;
    scores[i * SCORES + j] = j <= i ? q_norm[i] * k_norm[j] * dot[r][c] * expf(total[i] - total[j]) : 0.0f;
  }
float sum[4][COLUMNS];
#pragma unroll
for (int r = 0; r < 4; ++r)
  for (int c = 0; c < COLUMNS; ++c) sum[r][c] = 0.0f;
for (int k = 0; k < DK; k += STEP) {
  __syncthreads();
  for (int i = t; i < DV * STEP / 4; i += THREADS) {
    const int d = i / (STEP / 4), part = i % (STEP / 4) * 4;
    *reinterpret_cast<float4*>(&tile[d * LINE + part]) =
        *reinterpret_cast<const float4*>(&starts[(chunk * DV + d) * DK + k + part]);
  }
  __syncthreads();
  #pragma unroll
  for (int part = 0; part < STEP; part += 4) {
    float q[4][4];
    for (int r = 0; r < 4; ++r) {
      const Four x = *reinterpret_cast<const Four*>(&queries[(ti + 16 * r) * PAD + k + part]);
      for (int j = 0; j < 4; ++j) q[r][j] = static_cast<float>(x.at[j]);
    }
    for (int c = 0; c < COLUMNS; ++c) {
      const float4 s = *reinterpret_cast<const float4*>(&tile[(tj + 16 * c) * LINE + part]);
      for (int r = 0; r < 4; ++r) sum[r][c] += q[r][0] * s.x + q[r][1] * s.y + q[r][2] * s.z + q[r][3] * s.w;
    }
  }
}
#pragma unroll
for (int r = 0; r < 4; ++r) {
  const float scale = q_norm[ti + 16 * r] * expf(total[ti + 16 * r]);
  for (int c = 0; c < COLUMNS; ++c) sum[r][c] *= scale;
}
#pragma unroll
for (int block = 0; block < C / STEP; ++block) {
  __syncthreads();
  for (int i = t; i < STEP * DV / 4; i += THREADS)
    reinterpret_cast<float4*>(tile)[i] =
        reinterpret_cast<const float4*>(&news[(chunk * C + block * STEP) * DV])[i];
  __syncthreads();
  #pragma unroll
  for (int part = 0; part < STEP; part += 4) {
    float4 p[4];
    for (int r = 0; r < 4; ++r)
      p[r] = *reinterpret_cast<const float4*>(&scores[(ti + 16 * r) * SCORES + block * STEP + part]);
    for (int c = 0; c < COLUMNS; ++c) {
      const float* v = &tile[part * DV + tj + 16 * c];
      for (int r = block; r < 4; ++r)
        sum[r][c] += p[r].x * v[0] + p[r].y * v[DV] + p[r].z * v[2 * DV] + p[r].w * v[3 * DV];
    }
  }
}
#pragma unroll
for (int r = 0; r < 4; ++r) {
  float square = 0.0f;
  for (int c = 0; c < COLUMNS; ++c) square += sum[r][c] * sum[r][c];
  for (int step = 8; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
  const float norm = rsqrtf(square / DV + EPS);
  const int at = first + ti + 16 * r;
  if (at < n_tokens)
    for (int c = 0; c < COLUMNS; ++c) {
      const int d = tj + 16 * c;
      const float z = static_cast<float>(rows[(long long)at * WIDTH + CH + head * DV + d]);
      const float gate = z / (1.0f + expf(-z));
      out[((long long)at * HV + head) * DV + d] =
          static_cast<T>(gate * sum[r][c] * norm * static_cast<float>(norm_weight[d]));
    }
}
"""

# One block does one value head: S <- exp(G_r) S + V'^T (exp(G_r - G) K) over the chunk's first r rows.
_CAPTURE = """
constexpr int PAD = DK + 4;
constexpr int COLUMNS = DK / 16;
constexpr int WARPS = THREADS / 32;
static_assert(THREADS == 256, "16 x 16 threads tile the state");
__shared__ __align__(16) float keys[C * PAD];
const int t = threadIdx.x, lane = t % 32, warp = t / 32;
const int head = blockIdx.x, key_head = head / (HV / HK);
const int n = (end - 1) / C, n_rows = (end - 1) % C + 1;
const long long chunk = (long long)head * n_chunks + n;
const float* total = &totals[chunk * C];
const float now = total[n_rows - 1];
for (int r = warp; r < n_rows; r += WARPS) {
  const T* source = &mixed[(long long)(n * C + r) * CH + (HK + key_head) * DK];
  float square = 0.0f;
  for (int c = lane; c < DK; c += 32) {
    const float x = static_cast<float>(source[c]);
    keys[r * PAD + c] = x;
    square += x * x;
  }
  for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
  const float scale = rsqrtf(square + 1e-6f) * expf(now - total[r]);
  for (int c = lane; c < DK; c += 32) keys[r * PAD + c] *= scale;
}
__syncthreads();
const int ti = t / 16, tj = t % 16;
const float kept = expf(now);
for (int d = ti; d < DV; d += 16) {
  float sum[COLUMNS];
  const float* start = &starts[(chunk * DV + d) * DK];
  for (int c = 0; c < COLUMNS; ++c) sum[c] = kept * start[tj + 16 * c];
  for (int r = 0; r < n_rows; ++r) {
    const float v = news[(chunk * C + r) * DV + d];
    for (int c = 0; c < COLUMNS; ++c) sum[c] += v * keys[r * PAD + tj + 16 * c];
  }
  for (int c = 0; c < COLUMNS; ++c) state[((long long)head * DV + d) * DK + tj + 16 * c] = sum[c];
}
for (int i = head * THREADS + t; i < 3 * CH; i += HV * THREADS) {
  const int source = end - 3 + i / CH, channel = i % CH;
  tail[i] = source < 0 ? window[(source + 3) * CH + channel] : rows[(long long)source * WIDTH + channel];
}
"""

_convolve = Kernel("gdn_convolve", ["rows", "window", "taps"], ["mixed"], _CONVOLVE, numbers=["n_tokens"])
_solve = Kernel(
    "gdn_solve",
    ["mixed", "rows", "decay_rate", "dt_bias"],
    ["u", "w", "to_end", "totals"],
    _SOLVE,
    numbers=["n_tokens"],
)
_carry = Kernel(
    "gdn_carry",
    ["u", "w", "to_end", "totals", "start"],
    ["starts", "news", "last"],
    _ALONE + _CARRY,
    numbers=["n_chunks"],
)
_carry_each = Kernel(
    "gdn_carry_each",
    ["u", "w", "to_end", "totals", "start", "first_chunks"],
    ["starts", "news", "last"],
    _BESIDE_OTHERS + _CARRY,
    numbers=["n_chunks"],
)
_attend = Kernel(
    "gdn_attend",
    ["mixed", "rows", "starts", "news", "totals", "norm_weight"],
    ["out"],
    _ATTEND,
    numbers=["n_tokens"],
)
_capture = Kernel(
    "gdn_capture",
    ["mixed", "rows", "window", "starts", "news", "totals"],
    ["state", "tail"],
    _CAPTURE,
    numbers=["end", "n_chunks"],
)


class GdnShape(NamedTuple):
    """Heads and widths of a GDN layer, and what its gated norm adds to the mean square."""

    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    norm_eps: float

    @property
    def n_channels(self) -> int:
        """Of the convolution: q | k | v."""
        return 2 * self.n_key_heads * self.key_head_dim + self.n_value_heads * self.value_head_dim

    @property
    def width(self) -> int:
        """Of a row of the input projections: q | k | v | z | b | a."""
        return self.n_channels + self.n_value_heads * self.value_head_dim + 2 * self.n_value_heads

    def constants(self, dtype: mx.Dtype) -> Constants:
        """The constants that every kernel here and in :mod:`model.devices.cuda.kernels.gdn_step` reads."""
        return {
            "T": dtype,
            "HK": self.n_key_heads,
            "HV": self.n_value_heads,
            "DK": self.key_head_dim,
            "DV": self.value_head_dim,
            "CH": self.n_channels,
            "WIDTH": self.width,
            "EPS": self.norm_eps,
        }


class GdnWeights(NamedTuple):
    """What a GDN layer reads between its projections.

    Attributes:
        taps: [4, C] of the convolution; norm_weight: [Dv]; both in the model's dtype.
        decay_rate: -exp(A_log), [Hv]; dt_bias: [Hv]; both in float32.
    """

    taps: mx.array
    decay_rate: mx.array
    dt_bias: mx.array
    norm_weight: mx.array


class Walk(NamedTuple):
    """What the kernels leave of one part of a prompt, T tokens.

    Attributes:
        out: [T, Hv * Dv], the input of the output projection.
        state: [Hv, Dv, Dk] after the part; of several sequences [B, Hv, Dv, Dk].
        mixed, starts, news, totals: what :func:`capture` reads.
    """

    out: mx.array
    state: mx.array
    mixed: mx.array
    starts: mx.array
    news: mx.array
    totals: mx.array


def can_walk(shape: GdnShape, dtype: mx.Dtype) -> bool:
    """Whether the kernels take these shapes: what a block keeps in shared memory must fit 48 KiB."""
    dk, dv = shape.key_head_dim, shape.value_head_dim
    tile = CHUNK * (dk + 4)
    scores = 4 * CHUNK * (CHUNK + 4)
    solve = dtype.size * tile + 4 * CHUNK * CHUNK + 12 * CHUNK
    carry = 4 * (tile + _TILE * (dk + 4) + CHUNK * _TILE)
    attend = dtype.size * tile + max(dtype.size * tile, scores) + 80 * dv + 12 * CHUNK
    divides = dk % 32 == 0 and dv % 32 == 0 and dk + dv <= 1024
    return divides and max(solve, carry, attend) <= _SHARED_BYTES


def walk(
    rows: mx.array,
    window: mx.array,
    state: mx.array,
    shape: GdnShape,
    weights: GdnWeights,
    first_chunks: mx.array | None = None,
) -> Walk:
    """Feed T tokens of one sequence, or of several that lie end to end in whole chunks.

    Args:
        rows: [T, q | k | v | z | b | a] of the input projections.
        window: [3, C], the rows before; state: [Hv, Dv, Dk], float32, or [B, Hv, Dv, Dk].
        first_chunks: of several sequences, see :class:`model.layers.ragged.InChunks`.
    """
    n_tokens, n_channels = rows.shape[0], shape.n_channels
    heads, dk, dv = shape.n_value_heads, shape.key_head_dim, shape.value_head_dim
    n_chunks = -(-n_tokens // CHUNK)
    constants = shape.constants(rows.dtype) | {"C": CHUNK, "THREADS": _THREADS}
    (mixed,) = _convolve(
        [rows, window, weights.taps],
        constants | {"RUN": _RUN},
        (-(-n_channels // (2 * _THREADS)), -(-n_tokens // _RUN)),
        _THREADS,
        [((n_tokens, n_channels), rows.dtype)],
        n_tokens,
    )
    rows_of = (heads, n_chunks, CHUNK)
    u, w, to_end, totals = _solve(
        [mixed, rows, weights.decay_rate, weights.dt_bias],
        constants | {"THREADS": dk + dv},
        (n_chunks, heads),
        dk + dv,
        [(shape_, mx.float32) for shape_ in ((*rows_of, dv), (*rows_of, dk), (*rows_of, dk), rows_of)],
        n_tokens,
    )
    inputs, carry, n_seqs = [u, w, to_end, totals, state], _carry, 1
    if first_chunks is not None:
        inputs, carry, n_seqs = [*inputs, first_chunks], _carry_each, state.shape[0]
    starts, news, last = carry(
        inputs,
        constants | {"TILE": _TILE},
        (n_seqs * (dv // _TILE), heads),
        _THREADS,
        [((heads, n_chunks, dv, dk), mx.float32), (u.shape, mx.float32), (state.shape, mx.float32)],
        n_chunks,
    )
    (out,) = _attend(
        [mixed, rows, starts, news, totals, weights.norm_weight],
        constants,
        (n_chunks, heads),
        _THREADS,
        [((n_tokens, heads * dv), rows.dtype)],
        n_tokens,
    )
    return Walk(out, last, mixed, starts, news, totals)


def capture(
    position: int, rows: mx.array, window: mx.array, walked: Walk, shape: GdnShape
) -> tuple[mx.array, mx.array]:
    """The window [3, C] and the state [Hv, Dv, Dk] after ``position`` tokens of a part, 1 <= position <= T,
    in buffers of their own."""
    state, tail = _capture(
        [walked.mixed, rows, window, walked.starts, walked.news, walked.totals],
        shape.constants(rows.dtype) | {"C": CHUNK, "THREADS": _THREADS},
        (shape.n_value_heads,),
        _THREADS,
        [(walked.state.shape[-3:], mx.float32), (window.shape, window.dtype)],
        position,
        walked.starts.shape[1],
    )
    return tail, state
