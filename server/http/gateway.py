"""Where requests come in from HTTP and meet the model: bodies, the worker thread, runs, the drain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import ParamSpec, TypeVar

from server.client import EngineClient
from server.errors import UnavailableError
from server.events import Failed
from server.http.ahead import is_worth_it, warm_request
from server.http.courier import Courier
from server.http.metrics import Metrics
from server.http.run import Run
from server.http.served import Served
from server.log import RequestRecord
from server.openai.chat_request import ComposedChat
from server.openai.reply_schema import ReplyMessage
from server.settings import Settings

log = logging.getLogger("crossturn.gateway")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Gateway:
    """What every route works with; lives on the event loop.

    Args:
        engine: does the work.
        served: the model.
        settings: the operator's decisions.
        clock: seconds, monotonic.
    """

    engine: EngineClient
    served: Served
    settings: Settings
    clock: Callable[[], float] = time.monotonic
    metrics: Metrics = field(default_factory=Metrics)
    _live: set[Run] = field(default_factory=set)
    _reading_ahead: set[asyncio.Future[None]] = field(default_factory=set)
    _is_draining: bool = False
    _worker: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="render")
    )

    async def on_worker(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` on the one thread that parses and renders, so that the loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, lambda: fn(*args, **kwargs))

    def new_run(self, request_id: str) -> Run:
        """A run that the drain will know of.

        Raises:
            UnavailableError: the server is about to stop.
        """
        if self._is_draining:
            raise UnavailableError("The server is shutting down.", code="shutting_down", retry_after_s=10)
        record = RequestRecord(request_id, self.clock, self.metrics.observe)
        return Run(self.engine, self._courier, record, live=self._live, stall_s=self.settings.stall_s)

    @cached_property
    def _courier(self) -> Courier:
        return Courier(asyncio.get_running_loop())

    def read_ahead(self, chat: ComposedChat, reply: ReplyMessage) -> None:
        """Have the engine read, when idle, what the prompt after ``reply`` is known to begin with."""
        if self.settings.idle_prefill and is_worth_it(chat) and not self._is_draining:
            task = asyncio.ensure_future(self._read_ahead(chat, reply))
            self._reading_ahead.add(task)
            task.add_done_callback(self._reading_ahead.discard)

    async def _read_ahead(self, chat: ComposedChat, reply: ReplyMessage) -> None:
        try:
            request = await self.on_worker(warm_request, chat, reply, self.served.chat)
        except Exception:
            # The reply is long delivered: that its successor cannot be foreseen concerns nobody else.
            log.exception("cannot read ahead of %s", chat.generation.id)
        else:
            self.engine.read_ahead(request)

    async def drain(self) -> None:
        """Take no more requests; let those that run finish within the settings' time, then end them."""
        self._is_draining = True
        if self._live:
            ends = [asyncio.ensure_future(run.ended.wait()) for run in self._live]
            await asyncio.wait(ends, timeout=self.settings.drain_s)
            self.end_runs()
            await asyncio.wait(ends)

    def end_runs(self) -> None:
        """End every run now, with an error that says why."""
        for run in self._live:
            run.fail(Failed("The server is shutting down.", kind="shutting_down", retry_after_s=10))

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)
