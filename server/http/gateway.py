"""What every route works with: the model, the memory of bodies, the worker thread, runs, and the drain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property
from typing import ParamSpec, TypeVar

from fastapi import Request, Response

from server.client import EngineClient
from server.errors import LateBodyError, UnavailableError
from server.events import Failed
from server.http.run import Answer, Courier, ReplyEncoder, Run
from server.settings import Settings
from server.telemetry.record import Metrics, RequestRecord, Timeline
from server.telemetry.tracing import Tracing
from server.turn.compose import ComposedTurn, with_grammar
from server.turn.reply import Reply, is_worth_it, warm_request
from server.turn.served import Served

log = logging.getLogger("crossturn.gateway")

_BODIES_AT_ONCE = 8
"""How many bodies of the largest size may be received at a time."""

P = ParamSpec("P")
T = TypeVar("T")


class Arrivals:
    """All bodies that are being received, within a limit of memory.

    Args:
        max_bytes: what they may hold together; a body that exceeds it is refused.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._timeouts: set[asyncio.Timeout] = set()
        self._is_over = False

    @asynccontextmanager
    async def one(self, seconds: float) -> AsyncGenerator[Arriving, None]:
        """A context in which a body is received, within ``seconds``.

        Raises:
            LateBodyError: it takes longer.
            UnavailableError: the server stops, or there is no memory for the body.
        """
        arriving = Arriving(self)
        try:
            async with asyncio.timeout(0 if self._is_over else seconds) as timeout:
                self._timeouts.add(timeout)
                try:
                    yield arriving
                finally:
                    self._timeouts.discard(timeout)
                    self._n_bytes -= arriving.n_bytes
        except TimeoutError:
            if self._is_over:
                raise UnavailableError(
                    "The server is shutting down.", code="shutting_down", retry_after_s=10
                ) from None
            raise LateBodyError(
                f"The body did not arrive within {seconds:g} s.", code="request_timeout"
            ) from None

    def hold(self, n_bytes: int) -> None:
        """Reserve ``n_bytes`` more, or raise UnavailableError."""
        if self._n_bytes + n_bytes > self._max_bytes:
            raise UnavailableError(
                "Too many requests are being received.", code="overloaded", retry_after_s=2
            )
        self._n_bytes += n_bytes

    def stop(self) -> None:
        """Refuse the bodies that are still being received, and all later ones."""
        self._is_over = True
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            timeout.reschedule(now)


class Arriving:
    """One body that is being received; its bytes count until it is complete."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.n_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Reserve ``n_bytes`` more.

        Raises:
            UnavailableError: all bodies together would exceed the limit.
        """
        self._arrivals.hold(n_bytes)
        self.n_bytes += n_bytes


@dataclass
class Gateway:
    """What every route works with; lives on the event loop.

    Args:
        engine: generates replies.
        served: the model.
        settings: the operator's decisions.
        clock: seconds, monotonic.
        tracing: where traces of requests go, if anywhere.
        on_close: called by :meth:`close`; routers add what they hold open.

    Attributes:
        arrivals: the bodies that are being received.
        is_leaving: the server is about to stop or is stopping; requests are served until it drains.
    """

    engine: EngineClient
    served: Served
    settings: Settings
    clock: Callable[[], float] = time.monotonic
    on_close: list[Callable[[], None]] = field(default_factory=list)
    tracing: Tracing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    timeline: Timeline = field(default_factory=Timeline)
    arrivals: Arrivals = field(init=False)
    is_leaving: bool = False
    _live: set[Run] = field(default_factory=set)
    _reading_ahead: set[asyncio.Future[None]] = field(default_factory=set)
    _is_draining: bool = False
    _worker: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="render")
    )
    _compiler: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="schemas")
    )

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(_BODIES_AT_ONCE * self.settings.max_body)

    async def on_worker(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` on the one thread that parses and renders, so that the event loop stays free."""
        context = copy_context()  # so that log lines from there carry the request's id
        return await asyncio.get_running_loop().run_in_executor(
            self._worker, lambda: context.run(fn, *args, **kwargs)
        )

    def later_on_worker(self, fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue ``fn`` for that thread, ahead of all later work; nobody waits for the result."""

        def guarded() -> None:
            try:
                fn(*args, **kwargs)
            except Exception:
                log.exception("fault on the worker thread")

        self._worker.submit(guarded)

    def new_run(self, request_id: str) -> Run:
        """A run that the drain waits for.

        Raises:
            UnavailableError: the server is about to stop.
        """
        if self._is_draining:
            raise UnavailableError("The server is shutting down.", code="shutting_down", retry_after_s=10)
        record = RequestRecord(request_id, self.clock, self._note_end)
        return Run(self.engine, self._courier, record, live=self._live, stall_s=self.settings.stall_seconds)

    def _note_end(self, record: RequestRecord) -> None:
        """Tell everybody who counts requests; what fails there is logged, and costs no client its reply."""
        observers = [self.metrics.observe, self.timeline.note]
        if self.tracing is not None:
            observers.append(self.tracing.observe)
        for observe in observers:
            try:
                observe(record)
            except Exception:
                log.exception("cannot note the end of %s", record.id)

    @cached_property
    def _courier(self) -> Courier:
        return Courier(asyncio.get_running_loop())

    async def answer(
        self,
        request: Request,
        run: Run,
        asked: ComposedTurn,
        encoder: ReplyEncoder,
        *,
        stream: bool,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Run ``asked`` and send its replies as ``encoder`` encodes them; then read ahead of the next turn.

        Args:
            run: the one that was made when the request came in.
            headers: of the response, besides those that every response has.

        Raises:
            InputError: a schema that the reply must match cannot be enforced.
        """
        if asked.has_form:
            loop = asyncio.get_running_loop()
            asked = await loop.run_in_executor(self._compiler, with_grammar, asked, self.served)
        run.record.describe(who=asked.turn.user, thinking=asked.generation.prompt.opens_thought)

        def on_delivered() -> None:
            # What a client sends back of a reply that was cut short cannot be known.
            if encoder.replies.is_whole:
                self.read_ahead(asked, encoder.replies[0])

        answer = Answer(
            run=run,
            generations=[asked.generation],
            encoder=encoder,
            headers=headers or {},
            on_delivered=on_delivered,
        )
        return await answer.send(request, self.settings, stream=stream)

    def read_ahead(self, asked: ComposedTurn, reply: Reply) -> None:
        """Have the engine prefill, when idle, the known beginning of the prompt that follows ``reply``."""
        if self.settings.idle_prefill and is_worth_it(asked) and not self._is_draining:
            task = asyncio.ensure_future(self._read_ahead(asked, reply))
            self._reading_ahead.add(task)
            task.add_done_callback(self._reading_ahead.discard)

    async def _read_ahead(self, asked: ComposedTurn, reply: Reply) -> None:
        try:
            request = await self.on_worker(warm_request, asked, reply, self.served.chat)
        except Exception:
            # The reply is delivered already, so this failure has no one to be reported to but the log.
            log.exception("cannot read ahead of %s", asked.generation.id)
        else:
            self.engine.read_ahead(request)

    async def drain(self) -> None:
        """Refuse new requests, let the running ones finish within the drain time, then end them."""
        self.is_leaving = self._is_draining = True
        self.arrivals.stop()
        if self._live:
            ends = [asyncio.ensure_future(run.ended.wait()) for run in self._live]
            await asyncio.wait(ends, timeout=self.settings.drain_seconds)
            self.end_runs()
            await asyncio.wait(ends)

    def end_runs(self) -> None:
        """End every run now, with an error that gives the reason."""
        for run in self._live:
            run.fail(Failed("The server is shutting down.", kind="shutting_down", retry_after_s=10))

    def close(self) -> None:
        """Stop the worker threads, and close what routers hold open."""
        for executor in (self._worker, self._compiler):
            executor.shutdown(wait=False, cancel_futures=True)
        for end in self.on_close:
            end()
