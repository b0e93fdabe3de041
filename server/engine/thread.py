"""The engine thread: owns the weights, every ``mx.array``, the slots and the store.

The event loop reaches it through one queue of messages; events go back through the ``emit`` of each request.
The algorithm itself is in ``server/engine/loop.py``. Two guards of the thread are here as well:
:class:`Relief` gives memory back when the machine runs short, and :class:`Watchdog` notices an engine that
does not move.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import mlx.core as mx

from cache.store import Store
from model.backend import detect
from model.text.tokenizer import TextTokenizer
from server.client import EngineStats, ModelInfo
from server.engine.assembly import LEAST_BUDGET_BYTES, EngineOptions, assemble
from server.engine.loop import EngineLoop
from server.events import Emit, Failed, GenerationRequest, WarmRequest

log = logging.getLogger("crossturn.engine")

CHECK_S = 2.0
"""Seconds between two checks of the machine's memory."""
_REGAINED = 16  # a sixteenth of the whole budget comes back at a time

T = TypeVar("T")
Message = Callable[[EngineLoop], None]


class Engine:
    """Runs an :class:`EngineLoop` on a thread of its own. All methods may be called from any thread."""

    def __init__(self, options: EngineOptions, tokenizer: TextTokenizer) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._loop: EngineLoop | None = None  # set on the engine thread, while it runs
        self._thread: threading.Thread | None = None
        self._drain_until: float | None = None  # set and read on the engine thread
        self._watchdog = Watchdog(self.stats, options.settings.stall_seconds)

    def start(self) -> ModelInfo:
        """Load the model and begin. Blocks until it is ready.

        Raises:
            ModelError: the checkpoint cannot be loaded.
        """
        ready: Future[ModelInfo] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="engine", daemon=True)
        self._thread.start()
        try:
            info = ready.result()
        except BaseException:
            self._thread.join()  # a process that ends while MLX's threads stop is aborted
            raise
        self._watchdog.start()
        return info

    def stop(self, drain_s: float) -> None:
        """Let running requests finish within ``drain_s`` seconds, cancel the rest, and stop the thread."""

        def close(_: EngineLoop) -> None:
            self._drain_until = time.monotonic() + drain_s

        if self._thread is not None:
            self._messages.put(close)
            self._thread.join()
            self._watchdog.stop()

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        if self._has_ended:
            emit(Failed("The engine has stopped; the server's log says why.", "internal"))
        else:
            self._messages.put(lambda loop: loop.submit(request, emit))

    def read_ahead(self, request: WarmRequest) -> None:
        self._messages.put(lambda loop: loop.read_ahead(request))

    def cancel(self, request_id: str) -> None:
        self._messages.put(lambda loop: loop.cancel(request_id))

    def call(self, fn: Callable[[Store], T]) -> Future[T]:
        """Run ``fn`` over the store on the engine thread, between two steps."""
        future: Future[T] = Future()

        def run(loop: EngineLoop) -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(loop.store))
                except BaseException as error:  # a panic of a library too: somebody waits for this
                    future.set_exception(error)

        self._messages.put(run)
        return future

    @property
    def n_steps(self) -> int:
        loop = self._loop
        return 0 if loop is None else loop.counters.n_steps

    def stats(self) -> EngineStats:
        loop = self._loop
        if loop is None:
            return EngineStats(n_steps=0, n_running=0, n_waiting=0, is_alive=False)
        return loop.stats()

    @property
    def _has_ended(self) -> bool:
        """The thread ran and has stopped."""
        return self._thread is not None and not self._thread.is_alive()

    # -- on the engine thread ---------------------------------------------------------------------

    def _run(self, ready: Future[ModelInfo]) -> None:
        try:
            self._serve(ready)
        finally:
            self._loop = None  # its arrays are freed on the thread that made them
            # MLX's threads for this thread's streams must be joined before the process ends: otherwise
            # it sometimes aborts on exit ("terminate called without an active exception").
            mx.synchronize()
            mx.clear_streams()

    def _serve(self, ready: Future[ModelInfo]) -> None:
        try:
            loop, info = assemble(self._options, self._tokenizer)
        except BaseException as error:
            ready.set_exception(error)
            return
        self._loop = loop
        ready.set_result(info)
        try:
            self._go(loop, Relief(loop.store, detect().is_short_of_memory, time.monotonic))
        finally:
            loop.cancel_all()
            self._refuse_the_rest(loop)
            loop.store.disk.close()

    def _go(self, loop: EngineLoop, relief: Relief) -> None:
        """Step until the engine is told to stop. After a fault of the loop itself the engine goes on with
        what is still sound; after a second one without a single step in between it stops."""
        n_steps_at_fault = -1
        while not self._is_drained(loop):
            try:
                self._receive(loop, relief)
                relief.check()
                loop.step()
            except BaseException as fault:
                log.critical("the engine's loop failed; every request is dropped", exc_info=fault)
                if loop.counters.n_steps == n_steps_at_fault:
                    log.critical("the engine cannot go on: it stops")
                    return
                n_steps_at_fault = loop.counters.n_steps
                loop.recover(fault)

    def _is_drained(self, loop: EngineLoop) -> bool:
        if self._drain_until is None:
            return False
        return not loop.has_requests or time.monotonic() >= self._drain_until

    def _receive(self, loop: EngineLoop, relief: Relief) -> None:
        """Take all messages that wait; with nothing else to do, wait for one."""
        n_waits = 0
        while not (loop.has_work or self._take(loop, timeout=CHECK_S)):
            if n_waits == 0:
                relief.rest()
            relief.check()
            n_waits += 1
        while self._take(loop):
            pass

    def _take(self, loop: EngineLoop, timeout: float = 0.0) -> bool:
        """Take a message, if there is one within ``timeout`` seconds."""
        try:
            message = self._messages.get(block=timeout > 0, timeout=timeout or None)
        except queue.Empty:
            return False
        try:
            message(loop)
        except BaseException as fault:  # concerns this message alone
            log.error("the engine could not take a message", exc_info=fault)
        return True

    def _refuse_the_rest(self, loop: EngineLoop) -> None:
        """End the requests whose messages arrived while the engine was stopping."""
        while self._take(loop):
            pass
        loop.cancel_all()


class Relief:
    """Shrinks the store's budget while the machine is short of memory, and lets it grow back afterwards.

    Args:
        store: holds the conversations.
        is_short: whether the machine is short of memory now.
        clock: seconds, monotonic.
    """

    def __init__(self, store: Store, is_short: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._store = store
        self._is_short = is_short
        self._clock = clock
        self._whole = store.budget_bytes
        self._next_check = clock()

    def check(self) -> None:
        """Adapt the budget, if the last check was long enough ago."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        store = self._store
        if self._is_short():
            kept = min(store.budget_bytes, store.n_bytes) * 3 // 4
            store.budget_bytes = max(LEAST_BUDGET_BYTES, kept)
            store.enforce()
            mx.clear_cache()
        elif store.budget_bytes < self._whole:
            store.budget_bytes = min(self._whole, store.budget_bytes + self._whole // _REGAINED)
            store.enforce()  # what was allowed to exceed the smaller budget no longer is

    def rest(self) -> None:
        """Give MLX's pool of free buffers back to the system; called when the engine falls idle."""
        mx.clear_cache()


class Watchdog:
    """Checks the engine's pulse at intervals, on a thread of its own.

    Args:
        stats: the engine's current figures; may be called from any thread.
        stall_s: the interval; an engine that has work and makes no step for so long is stuck.
    """

    def __init__(self, stats: Callable[[], EngineStats], stall_s: float) -> None:
        self._stats = stats
        self._stall_s = stall_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._seen = -1
        self._has_told = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def look(self) -> bool:
        """Check once. The stacks of all threads are logged once for each time that the engine is stuck.

        Returns:
            whether the engine had work at this check and at the last one, and made no step in between.
        """
        stats = self._stats()
        has_work = stats.n_running + stats.n_waiting > 0
        is_stuck = has_work and stats.n_steps == self._seen
        self._seen = stats.n_steps if has_work else -1
        if is_stuck and not self._has_told:
            log.critical("the engine has not moved for %g s:\n%s", self._stall_s, stacks())
        self._has_told = is_stuck
        return is_stuck

    def _watch(self) -> None:
        while not self._is_over.wait(self._stall_s):
            self.look()


def stacks() -> str:
    """The call stack of every thread of the process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
