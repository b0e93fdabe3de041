"""The CPU that stands in for a GPU shows what is wrong with a kernel."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from model.devices.cuda.kernels.kernel import Program
from tests.fakes import cuda_emulator

pytestmark = pytest.mark.skipif(not cuda_emulator.is_available(), reason="no C++ compiler")

THREADS, BLOCKS = 64, 2


def launch(source: str, x: mx.array | None = None, size: int = THREADS * BLOCKS) -> mx.array:
    """Run a kernel of two blocks of two warps from ``x`` to ``y``."""
    x = mx.arange(size, dtype=mx.float32) if x is None else x
    program = Program("trial", [("const float*", "x"), ("float*", "y")], source, "")
    (y,) = cuda_emulator.launch(program, [x], [BLOCKS], THREADS, [((size,), mx.float32)], [])
    return y


def test_threads_of_a_block_share_memory_across_a_barrier() -> None:
    y = launch("""
        __shared__ float held[64];
        const int first = blockIdx.x * 64;
        held[threadIdx.x] = x[first + threadIdx.x];
        __syncthreads();
        y[first + threadIdx.x] = held[63 - threadIdx.x];
    """)
    assert np.array(y).tolist() == [*range(63, -1, -1), *range(127, 63, -1)]


def test_a_barrier_left_out_between_warps_shows() -> None:
    y = launch("""
        __shared__ float held[64];
        const int first = blockIdx.x * 64;
        held[threadIdx.x] = x[first + threadIdx.x];
        y[first + threadIdx.x] = held[63 - threadIdx.x];
    """)
    assert np.array(y).tolist() != [*range(63, -1, -1), *range(127, 63, -1)]


def test_lanes_of_a_warp_add_up_by_exchange() -> None:
    y = launch("""
        float sum = x[blockIdx.x * 64 + threadIdx.x];
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
        y[blockIdx.x * 64 + threadIdx.x] = sum;
    """)
    assert np.array(y).reshape(4, 32).tolist() == [[sum(range(w, w + 32))] * 32 for w in (0, 32, 64, 96)]


def test_a_barrier_that_some_threads_leave_out_is_reported_and_the_next_launch_runs() -> None:
    source = """
        if (x[threadIdx.x] > 0.0f) __syncthreads();
        __syncwarp();
        y[blockIdx.x * 64 + threadIdx.x] = 1.0f;
    """
    with pytest.raises(AssertionError, match="barrier"):
        launch(source, mx.arange(THREADS * BLOCKS) - 40.0)
    assert np.array(launch(source, mx.ones(THREADS * BLOCKS))).tolist() == [1.0] * THREADS * BLOCKS


def test_what_a_kernel_does_not_write_is_no_number() -> None:
    y = np.array(launch("if (threadIdx.x > 0) y[blockIdx.x * 64 + threadIdx.x] = 0.0f;"))
    assert np.flatnonzero(np.isnan(y)).tolist() == [0, 64]


@pytest.mark.parametrize("at", ["-1", "128"])
def test_a_write_beyond_an_output_is_reported(at: str) -> None:
    with pytest.raises(AssertionError, match="beyond an output"):
        launch(f"if (threadIdx.x == 0) y[{at}] = 0.0f;")
