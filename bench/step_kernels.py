"""What a decode step launches on a GPU: its kernels, how often, and how long they take; and where the time of
the thread that launches them goes.

    python bench/step_kernels.py --shape 0.8B --companies 1 16

Needs torch for its profiler, which sees MLX's kernels too.
"""

from __future__ import annotations

import argparse

from sides import prepare_side

prepare_side("crossturn")

import mlx.core as mx  # noqa: E402
import torch  # noqa: E402
from filled import filled_state, step_times, stepper  # noqa: E402
from random_model import forward_over, random_modules  # noqa: E402
from shape_table import SHAPES  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402


def main() -> None:
    """Print the times of a step for each company, and its kernels."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="0.8B", choices=SHAPES)
    parser.add_argument("--bits", type=int, default=16, choices=[16, 8, 4])
    parser.add_argument("--companies", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    torch.zeros(1).cuda()  # the profiler wants a context
    forward = forward_over(*random_modules(options.shape, options.bits))
    for size in options.companies:
        step = stepper(forward, [filled_state(forward, options.context) for _ in range(size)])
        times = sorted((step_times(step, size) for _ in range(9)), key=lambda times: times.total)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            mx.eval(mx.argmax(step(mx.zeros((size,), mx.uint32)), axis=-1))
            mx.synchronize()
        kernels = [event for event in profiler.key_averages() if event.device_time_total > 0]
        total = sum(event.device_time_total for event in kernels) / 1e3
        n = sum(event.count for event in kernels)
        median = times[len(times) // 2]
        steps = [1e3 * one.total for one in (median, times[0], times[-1])]
        built, launched, waited = (1e3 * part for part in median)
        print(f"{size} sequences: {steps[0]:.2f} ({steps[1]:.2f} to {steps[2]:.2f}) ms a step")
        print(f"  {built:.2f} to build its graph, {launched:.2f} to launch it, {waited:.2f} of waiting")
        print(f"  {n} kernels, {total:.2f} ms")
        for event in sorted(kernels, key=lambda event: -event.device_time_total):
            print(f"  {event.device_time_total / 1e3:8.3f} ms  {event.count:4} x  {event.key[:90]}")


if __name__ == "__main__":
    main()
