"""The CPU's cores, for what MLX would run on one of them.

MLX's CPU backend computes everything but its matrix products on one thread. NumPy lets go of Python's
lock while it computes, so plain threads that call it run side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count


class Crew:
    """The calling thread and ``size - 1`` helpers, which start when they are first needed.

    Helpers must not touch MLX: its streams belong to the thread that made them.

    Attributes:
        size: threads that work at once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._helpers = ThreadPoolExecutor(size, thread_name_prefix="crew")

    def each(self, work: Callable[[int], object], n: int) -> None:
        """Call ``work`` with 0 .. n - 1, each once, in no particular order; return when all are done.

        Raises:
            Exception: the first that ``work`` raised; what other threads had begun is finished by then.
        """
        numbers = count()

        def run() -> None:
            while (number := next(numbers)) < n:
                work(number)

        helping = [self._helpers.submit(run) for _ in range(min(self.size, n) - 1)]
        try:
            run()
        finally:
            faults = [helper.exception() for helper in helping]
        for fault in faults:
            if fault is not None:
                raise fault
