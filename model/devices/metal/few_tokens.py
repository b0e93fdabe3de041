"""The gated delta rule over a few tokens of each sequence, with the states on the way, in one launch.

mlx-lm's kernel hands out the last state alone: states after each of T tokens cost T launches a layer. This
one walks over the tokens in the same way, with the same sums in the same order, and writes the states that
are wanted as it passes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_kernel

log = logging.getLogger("crossturn.model")

LANES = 32  # of a simdgroup, which has a row of the state; so many numbers of a key, or a multiple
ROWS = 4  # of the state, in a threadgroup

# A simdgroup has one row of one head's state, a lane of it Dk / 32 numbers.
_SOURCE = """
constexpr int EACH = Dk / 32;
const uint lane = thread_position_in_threadgroup.x;
const uint dv = thread_position_in_grid.y;
const uint job = thread_position_in_grid.z, n_jobs = threads_per_grid.z;
const uint sequence = job / Hv, head = job % Hv, key_head = head / (Hv / Hk);

float state[EACH];
for (int i = 0; i < EACH; ++i) state[i] = before[(job * Dv + dv) * Dk + EACH * lane + i];
int slot = 0;
for (int t = 0; t < n_tokens; ++t) {
  const uint token = sequence * n_tokens + t;
  const float decay = precise::exp(log_decay[token * Hv + head]);
  const uint at = (token * Hk + key_head) * Dk + EACH * lane;
  float key[EACH], seen = 0.0f;
  for (int i = 0; i < EACH; ++i) {
    key[i] = static_cast<float>(static_cast<T>(k[at + i]));
    state[i] = state[i] * decay;
    seen += state[i] * key[i];
  }
  seen = simd_sum(seen);
  const float value = static_cast<float>(v[(token * Hv + head) * Dv + dv]);
  const float error = (value - seen) * beta[token * Hv + head];
  float out = 0.0f;
  for (int i = 0; i < EACH; ++i) {
    state[i] = state[i] + key[i] * error;
    out += state[i] * static_cast<float>(static_cast<T>(q[at + i]));
  }
  out = simd_sum(out);
  if (lane == 0) y[(token * Hv + head) * Dv + dv] = static_cast<T>(out);
  if (slot < n_wanted && wanted[slot] == t + 1) {
    for (int i = 0; i < EACH; ++i)
      states[((slot * n_jobs + job) * Dv + dv) * Dk + EACH * lane + i] = state[i];
    ++slot;
  }
}
"""


def few_tokens(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_decay: mx.array,
    beta: mx.array,
    state: mx.array,
    capture_at: Sequence[int],
) -> tuple[mx.array, list[mx.array]]:
    """T tokens of each of B sequences; see :meth:`model.layers.delta_rule.DeltaRule.few`.

    Dk is a multiple of :data:`LANES`, Dv one of :data:`ROWS`.
    """
    n_seqs, n_tokens, n_key_heads, dk = k.shape
    n_heads, dv = v.shape[2:]
    wanted = mx.array(list(capture_at), mx.int32)
    out, states = _kernel()(
        inputs=[q, k, v, log_decay, beta, state, wanted, n_tokens, len(capture_at)],
        template=[("T", v.dtype), ("Dk", dk), ("Dv", dv), ("Hk", n_key_heads), ("Hv", n_heads)],
        grid=(LANES, dv, n_seqs * n_heads),
        threadgroup=(LANES, ROWS, 1),
        output_shapes=[v.shape, (len(capture_at), *state.shape)],
        output_dtypes=[v.dtype, mx.float32],
    )
    return out, [captured.squeeze(0) for captured in mx.split(states, len(capture_at))]


@cache
def agrees(dtype: mx.Dtype, dk: int, dv: int) -> bool:
    """Whether the kernel does here what mlx-lm's does, on random tokens of such heads; tried once.

    A kernel that cannot be built or run agrees with nothing: what is left then is mlx-lm's.
    """
    if dk % LANES or dv % ROWS:
        return False
    shape, n_tokens = (2, 5), 5
    keys = iter(mx.random.split(mx.random.key(0), 6))
    q, k = (mx.random.normal((*shape, 1, dk), key=next(keys)) * dk**-0.5 for _ in range(2))
    v = mx.random.normal((*shape, 2, dv), key=next(keys)).astype(dtype)
    log_decay = -mx.random.uniform(shape=(*shape, 2), key=next(keys))
    beta = mx.random.uniform(shape=(*shape, 2), key=next(keys))
    state = mx.random.normal((shape[0], 2, dv, dk), key=next(keys))
    try:
        out, captured = few_tokens(q, k, v, log_decay, beta, state, (2, n_tokens))
        q, k = q.astype(dtype), k.astype(dtype)
        wanted, last = gated_delta_kernel(q, k, v, mx.exp(log_decay), beta, state)
        error = max(_apart(out, wanted), _apart(captured[1], last))
    except (RuntimeError, ValueError, TypeError, AttributeError) as fault:
        log.warning("the kernel for a few tokens cannot run (%s): mlx-lm's is used", fault)
        return False
    bound = 1e-4 if dtype == mx.float32 else 2e-2
    if not error <= bound:
        log.warning("the kernel for a few tokens is off by %.1e: mlx-lm's is used", error)
    return error <= bound


@cache
def _kernel() -> Callable[..., list[mx.array]]:
    kernel: Any = mx.fast.metal_kernel(
        name="crossturn_few_tokens",
        input_names=["q", "k", "v", "log_decay", "beta", "before", "wanted", "n_tokens", "n_wanted"],
        output_names=["y", "states"],
        source=_SOURCE,
    )
    return cast(Callable[..., list[mx.array]], kernel)


def _apart(found: mx.array, wanted: mx.array) -> float:
    found, wanted = found.astype(mx.float32), wanted.astype(mx.float32)
    return float(mx.abs(found - wanted).max() / mx.abs(wanted).max())
