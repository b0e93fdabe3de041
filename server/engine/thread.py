"""The engine thread: owns the weights, every ``mx.array``, the slots and the store.

The event loop reaches it through one queue of messages; events go back through the ``emit`` of each request.
The algorithm itself is in ``server/engine/loop.py``.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import mlx.core as mx

from cache.store import Store
from model.text.tokenizer import TextTokenizer
from server.client import EngineStats, ModelInfo
from server.engine.assembly import EngineOptions, assemble
from server.engine.loop import EngineLoop
from server.engine.relief import CHECK_S
from server.engine.watchdog import Watchdog
from server.events import Emit, Failed, GenerationRequest, WarmRequest

log = logging.getLogger("crossturn.engine")

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
        """Let running requests finish for ``drain_s`` seconds at most, end the rest, stop the thread."""

        def close(_: EngineLoop) -> None:
            self._drain_until = time.monotonic() + drain_s

        if self._thread is not None:
            self._messages.put(close)
            self._thread.join()
            self._watchdog.stop()

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        if self._has_ended:
            emit(Failed("the engine has stopped; the server's log says why", "internal"))
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
                except Exception as error:
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
        """The thread ran, and does no longer."""
        return self._thread is not None and not self._thread.is_alive()

    # -- on the engine thread ---------------------------------------------------------------------

    def _run(self, ready: Future[ModelInfo]) -> None:
        try:
            self._serve(ready)
        finally:
            self._loop = None  # its arrays go on the thread that made them
            # MLX's threads for this thread's streams must be joined before the process ends: otherwise
            # its exit now and then aborts ("terminate called without an active exception").
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
            self._go(loop)
        finally:
            loop.cancel_all()
            self._refuse_the_rest(loop)
            loop.store.disk.close()

    def _go(self, loop: EngineLoop) -> None:
        """Step until the engine is told to stop. A fault that no request answers for is survived with what
        is still sound; another one before a single step was made in between is not."""
        n_steps_at_fault = -1
        while not self._is_drained(loop):
            try:
                self._receive(loop)
                loop.step()
            except BaseException as fault:
                log.critical("the engine's loop failed; what it was doing is dropped", exc_info=fault)
                if loop.counters.n_steps == n_steps_at_fault:
                    log.critical("the engine cannot go on: it stops")
                    return
                n_steps_at_fault = loop.counters.n_steps
                loop.recover(fault)

    def _is_drained(self, loop: EngineLoop) -> bool:
        if self._drain_until is None:
            return False
        return not loop.has_requests or time.monotonic() >= self._drain_until

    def _receive(self, loop: EngineLoop) -> None:
        """Take all messages there are; with nothing to do, wait for one."""
        n_waits = 0
        while not (loop.has_work or self._take(loop, timeout=CHECK_S)):
            if n_waits == 0:
                loop.relief.rest()
            loop.relief.check()
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
        except BaseException as fault:  # of one message: it concerns no other
            log.error("the engine could not take a message", exc_info=fault)
        return True

    def _refuse_the_rest(self, loop: EngineLoop) -> None:
        """Messages that crossed the closing: their requests end like those that were running."""
        while self._take(loop):
            pass
        loop.cancel_all()
