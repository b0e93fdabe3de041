"""The sparse block of a decode step in three kernels: who goes where, into the experts, and out of them.

As array operations a block is some twenty launches, and a step is bound by its launches.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from model.devices.cuda.kernels.few_rows import Matrix
from model.devices.cuda.kernels.kernel import Constants, Kernel

_WARPS = 8
_MOST_CHOSEN = 32  # one for each lane that writes them

# A warp does one token: each of its lanes holds every 32nd expert, and all look for the best that is left.
_ROUTE = """
constexpr int EACH = (EXPERTS + 31) / 32;
constexpr float LEAST = -3.0e38f;
const int lane = threadIdx.x % 32, token = blockIdx.x * WARPS + threadIdx.x / 32;
if (token >= n_tokens) return;
const T* row = &logits[(long long)token * (EXPERTS + 1)];
float value[EACH];
float largest = LEAST;
#pragma unroll
for (int i = 0; i < EACH; ++i) {
  value[i] = i * 32 + lane < EXPERTS ? static_cast<float>(row[i * 32 + lane]) : LEAST;
  largest = value[i] > largest ? value[i] : largest;
}
for (int step = 16; step > 0; step /= 2) {
  const float other = __shfl_xor_sync(0xffffffff, largest, step);
  largest = other > largest ? other : largest;
}
float total = 0.0f;
#pragma unroll
for (int i = 0; i < EACH; ++i)
  if (i * 32 + lane < EXPERTS) total += expf(value[i] - largest);
for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
float mine = 0.0f, sum = 0.0f;
int which = 0;
for (int c = 0; c < CHOSEN; ++c) {
  float best = LEAST;
  int index = lane < EXPERTS ? lane : 0;  // an expert, whatever the logits are
  #pragma unroll
  for (int i = 0; i < EACH; ++i)
    if (value[i] > best) {
      best = value[i];
      index = i * 32 + lane;
    }
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffff, best, step);
    const int other_index = __shfl_xor_sync(0xffffffff, index, step);
    if (other > best || (other == best && other_index < index)) {
      best = other;
      index = other_index;
    }
  }
  const float share = expf(best - largest) / total;
  sum += share;
  if (lane == c) {
    mine = share;
    which = index;
  }
  #pragma unroll
  for (int i = 0; i < EACH; ++i)
    if (i * 32 + lane == index) value[i] = LEAST;
}
if (lane < CHOSEN) {
  chosen[token * CHOSEN + lane] = which;
  shares[token * (CHOSEN + 1) + lane] = NORMALISED ? mine / sum : mine;
}
if (lane == 0)
  shares[token * (CHOSEN + 1) + CHOSEN] = 1.0f / (1.0f + expf(-static_cast<float>(row[EXPERTS])));
"""

# How RUN numbers of a matrix are read at once, and multiplied by as many of an input.
_PLAIN = """
struct __align__(16) Vector { T at[16 / sizeof(T)]; };
constexpr int RUN = 16 / sizeof(T);
auto read = [&](long long at) { return *reinterpret_cast<const Vector*>(&weight[at]); };
auto product = [&](const Vector& w, long long, const T* from) {
  const Vector x = *reinterpret_cast<const Vector*>(from);
  float total = 0.0f;
  #pragma unroll
  for (int j = 0; j < RUN; ++j) total += static_cast<float>(w.at[j]) * static_cast<float>(x.at[j]);
  return total;
};
"""
# A packed number q becomes 1 + q / 2^BITS, which takes no conversion: its bits are a mantissa's first.
_PACKED = """
constexpr int VECTOR = 16 / sizeof(T);
struct __align__(16) Vector { T at[VECTOR]; };
struct __align__(16) Words { unsigned at[4]; };
constexpr int RUN = 128 / BITS;
constexpr int FIRST = 23 - BITS;
constexpr unsigned MASK = ((1u << BITS) - 1u) << FIRST, ONE = 0x3f800000u;
auto read = [&](long long at) { return *reinterpret_cast<const Words*>(&weight[at / (32 / BITS)]); };
auto product = [&](const Words& w, long long at, const T* from) {
  float total = 0.0f, sum = 0.0f;
  #pragma unroll
  for (int i = 0; i < RUN / VECTOR; ++i) {
    const Vector x = *reinterpret_cast<const Vector*>(from + i * VECTOR);
    #pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      const int bit = (i * VECTOR + j) * BITS % 32;
      const unsigned word = w.at[(i * VECTOR + j) * BITS / 32];
      const unsigned shifted = bit < FIRST ? word << (FIRST - bit) : word >> (bit - FIRST);
      const float value = static_cast<float>(x.at[j]);
      total += __uint_as_float(shifted & MASK | ONE) * value;
      sum += value;
    }
  }
  const float scale = static_cast<float>(scales[at / GROUP]), bias = static_cast<float>(biases[at / GROUP]);
  return scale * (1 << BITS) * (total - sum) + bias * sum;
};
"""

# A warp does one gate and its up for one pair of token and expert.
_WIDEN = """
const int lane = threadIdx.x % 32, f = blockIdx.x * WARPS + threadIdx.x / 32, pair = blockIdx.y;
if (f >= WIDE) return;
const long long first = (long long)chosen[pair] * 2 * WIDE + f;
const long long gate_row = first * IN, up_row = (first + WIDE) * IN;
const T* row = &x[(long long)(pair / CHOSEN) * IN];
float gate = 0.0f, up = 0.0f;
#pragma unroll 4
for (int k = lane * RUN; k < IN; k += 32 * RUN) {
  const auto one = read(gate_row + k), other = read(up_row + k);
  gate += product(one, gate_row + k, row + k);
  up += product(other, up_row + k, row + k);
}
for (int step = 16; step > 0; step /= 2) {
  gate += __shfl_xor_sync(0xffffffff, gate, step);
  up += __shfl_xor_sync(0xffffffff, up, step);
}
if (lane == 0) wide[(long long)pair * WIDE + f] = static_cast<T>(gate / (1.0f + expf(-gate)) * up);
"""

# A warp does one output of one token: the sum over its experts, and the shared expert's. Where the rows are
# short, parts of it do an expert each.
_NARROW = """
const int lane = threadIdx.x % 32, h = blockIdx.x * WARPS + threadIdx.x / 32, token = blockIdx.y;
if (h >= OUT) return;
const float* share = &shares[token * (CHOSEN + 1)];
constexpr int LANES = WIDE / RUN >= 32 ? 32 : WIDE / RUN >= 16 ? 16 : 8;
float total = 0.0f;
#pragma unroll
for (int first = 0; first < CHOSEN; first += 32 / LANES) {
  const int c = first + lane / LANES;
  if (c >= CHOSEN) continue;
  const long long pair = (long long)token * CHOSEN + c;
  const long long row = ((long long)chosen[pair] * OUT + h) * WIDE;
  float sum = 0.0f;
  #pragma unroll
  for (int k = lane % LANES * RUN; k < WIDE; k += LANES * RUN)
    sum += product(read(row + k), row + k, &wide[pair * WIDE + k]);
  total += share[c] * sum;
}
for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
const long long at = (long long)token * OUT + h;
if (lane == 0) {
  total += share[CHOSEN] * static_cast<float>(shared[at]);
  y[at] = static_cast<T>(SUMMED ? total + static_cast<float>(residual[at]) : total);
}
"""

_MATRICES = ["weight", "scales", "biases"]
_route = Kernel("route", ["logits"], ["chosen", "shares"], _ROUTE, numbers=["n_tokens"])
_widen = {
    is_plain: Kernel(
        "widen", ["x", "chosen", *_MATRICES], ["wide"], (_PLAIN if is_plain else _PACKED) + _WIDEN
    )
    for is_plain in (True, False)
}
_narrow = {
    is_plain: Kernel(
        "narrow",
        ["wide", "chosen", "shares", "shared", "residual", *_MATRICES],
        ["y"],
        (_PLAIN if is_plain else _PACKED) + _NARROW,
    )
    for is_plain in (True, False)
}


class Routes(NamedTuple):
    """Where N tokens go.

    Attributes:
        chosen: [N, K] experts.
        shares: [N, K + 1] what each expert's output is multiplied by, and at last the shared expert's, in
            float32.
    """

    chosen: mx.array
    shares: mx.array


def experts_of(layer: nn.Module) -> Matrix | None:
    """The layer's matrices; None if the kernels do not take them: anything but plain or affinely quantised
    ones of 4 or 8 bits, whose rows are read in whole vectors."""
    if "bias" in layer:
        return None
    if type(layer) is SwitchLinear:
        weight = layer.weight
        fits = weight.shape[-1] * weight.dtype.size % 16 == 0
        return Matrix(weight, weight, weight, 16, 1) if fits else None
    if type(layer) is QuantizedSwitchLinear and layer.mode == "affine" and layer.bits in (4, 8):
        assert layer.biases is not None  # affine
        return Matrix(layer.weight, layer.scales, layer.biases, layer.bits, layer.group_size)
    return None


def can_route(n_chosen: int) -> bool:
    """Whether :func:`route` takes so many experts a token."""
    return n_chosen <= _MOST_CHOSEN


def route(logits: mx.array, n_chosen: int, *, is_normalised: bool) -> Routes:
    """Softmax over the experts and the largest of it; of equal ones, the first.

    Args:
        logits: [N, E + 1], the last of a row for the shared expert.
        n_chosen: K.
        is_normalised: the shares of a token's experts add up to one.
    """
    n_tokens, n_logits = logits.shape
    outputs = _route(
        [logits],
        {
            "T": logits.dtype,
            "EXPERTS": n_logits - 1,
            "CHOSEN": n_chosen,
            "NORMALISED": int(is_normalised),
            "WARPS": _WARPS,
        },
        (-(-n_tokens // _WARPS),),
        32 * _WARPS,
        [((n_tokens, n_chosen), mx.uint32), ((n_tokens, n_chosen + 1), mx.float32)],
        n_tokens,
    )
    return Routes(*outputs)


def widen(x: mx.array, chosen: mx.array, inputs: Matrix) -> mx.array:
    """x [N, H] through [gate | up] of its experts, to silu(gate) * up [N, K, F]."""
    n_tokens, n_chosen = chosen.shape
    width = inputs.weight.shape[1] // 2
    (wide,) = _widen[inputs.bits == 16](
        [x, chosen, inputs.weight, inputs.scales, inputs.biases],
        {"IN": x.shape[-1], "WIDE": width, **_constants(x, n_chosen, inputs)},
        (-(-width // _WARPS), n_tokens * n_chosen),
        32 * _WARPS,
        [((n_tokens, n_chosen, width), x.dtype)],
    )
    return wide


def narrow(
    wide: mx.array, routes: Routes, shared: mx.array, outputs: Matrix, residual: mx.array | None = None
) -> mx.array:
    """What :func:`widen` gave through the experts' last matrices, summed by shares, the shared expert's
    output [N, H] times its gate, and ``residual`` [N, H]: [N, H]."""
    n_tokens, n_chosen, width = wide.shape
    n_out = outputs.weight.shape[1]
    (y,) = _narrow[outputs.bits == 16](
        [
            wide,
            routes.chosen,
            routes.shares,
            shared,
            shared if residual is None else residual,
            *outputs[:3],
        ],
        {
            "WIDE": width,
            "OUT": n_out,
            "SUMMED": int(residual is not None),
            **_constants(wide, n_chosen, outputs),
        },
        (-(-n_out // _WARPS), n_tokens),
        32 * _WARPS,
        [((n_tokens, n_out), wide.dtype)],
    )
    return y


def _constants(x: mx.array, n_chosen: int, experts: Matrix) -> Constants:
    return {"T": x.dtype, "CHOSEN": n_chosen, "WARPS": _WARPS, "BITS": experts.bits, "GROUP": experts.group}
