"""A thread that writes files one after another, so that the engine never waits for a disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from cache import blob

log = logging.getLogger("crossturn.cache")


@dataclass(frozen=True, slots=True)
class Job:
    """One file to write or, where there is no content, to delete.

    Attributes:
        content: makes the bytes, on the writer's thread.
        n_bytes: how many they are, about; they count as waiting until the file is there.
        needs: names of files that must have been written, or this one is not.
    """

    path: Path
    content: Callable[[], bytes] | None = None
    n_bytes: int = 0
    needs: Collection[str] = ()


class Writer:
    """Does jobs in the order they come. A file that cannot be written is logged once and given up, and
    with it every later file that needs it."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._n_queued_bytes = 0  # of the putting thread
        self._n_done_bytes = 0  # of the writing thread; each is changed by one thread alone
        self._failed: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="cache-writer", daemon=True)
        self._thread.start()

    @property
    def n_waiting_bytes(self) -> int:
        """Bytes that are not on the disk yet."""
        return self._n_queued_bytes - self._n_done_bytes

    def put(self, job: Job) -> None:
        """Do ``job`` after all that were put before."""
        self._n_queued_bytes += job.n_bytes
        self._jobs.put(job)

    def wait(self) -> None:
        """Return when all that was put is done."""
        self._jobs.join()

    def close(self) -> None:
        """Finish what was put, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._do(job)
            finally:
                self._n_done_bytes += job.n_bytes
                self._jobs.task_done()
        self._jobs.task_done()

    def _do(self, job: Job) -> None:
        try:
            if job.content is None:
                job.path.unlink(missing_ok=True)
            elif self._failed.isdisjoint(job.needs):
                blob.write(job.path, job.content())
                self._failed.discard(job.path.name)
        except OSError as error:
            if not self._failed:
                log.warning("cannot write the cache folder, conversations stay in memory: %s", error)
            self._failed.add(job.path.name)
