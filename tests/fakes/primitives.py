"""Counts what a graph would launch on a GPU, without running it."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import mlx.core as mx
from mlx_lm.models import gated_delta

from model.devices.metal import delta_rule as own

# These only look at their input in another way.
VIEWS = {
    "AsStrided",
    "Broadcast",
    "ExpandDims",
    "Flatten",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unflatten",
}


def launches(*arrays: mx.array) -> Counter[str]:
    """The primitives by name that an evaluation of ``arrays`` would run, views left out."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *arrays)
    names = re.findall(r'\[label ="([^"]*)", shape=rectangle\]', dot.getvalue())
    return Counter("Compiled" if name.startswith("Compiled") else name for name in names if name not in VIEWS)


@contextmanager
def as_on_metal() -> Iterator[None]:
    """Functions that have a kernel of their own on Metal make one primitive here too; values are nonsense."""

    def one(x: mx.array, *others: mx.array | None) -> mx.array:
        (out,) = mx.depends([x], [other for other in others if other is not None])
        return out

    def delta_rule(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        g: mx.array,
        beta: mx.array,
        state: mx.array,
        mask: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        assert mask is None
        out, after = mx.depends([v, state], [q, k, g, beta])
        return out, after

    def few_tokens(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        log_decay: mx.array,
        beta: mx.array,
        state: mx.array,
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[mx.array]]:
        n = len(capture_at)
        stacked = mx.broadcast_to(state, (n, *state.shape))
        out, states = mx.depends([v, stacked], [q, k, log_decay, beta])
        return out, [captured.squeeze(0) for captured in mx.split(states, n)]

    with (
        mock.patch.object(own, "agrees", return_value=True),
        mock.patch.object(own, "few_tokens", few_tokens),
        mock.patch.object(mx.fast, "rms_norm", lambda x, weight, eps: one(x, weight)),  # noqa: ARG005
        mock.patch.object(mx.fast, "rope", lambda x, *_, **__: one(x)),
        mock.patch.object(mx.fast, "scaled_dot_product_attention", lambda q, k, v, **_: one(q, k, v)),
        mock.patch.object(own, "gated_delta_kernel", delta_rule),
        mock.patch.object(gated_delta, "gated_delta_ops", delta_rule),
    ):
        yield
