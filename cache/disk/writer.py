"""A thread that writes files one after another, so that the engine never waits for a disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from cache.disk import blob

log = logging.getLogger("crossturn.cache")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One file to write or, where there is no content, to delete.

    Attributes:
        content: makes the bytes, on the writer's thread.
        n_bytes: how many they are, about; they count as waiting until the file is there.
        needs: names of files that must have been written, or this one is not.
        done: told by :meth:`Writer.settle` whether the job was done.
    """

    path: Path
    content: Callable[[], bytes] | None = None
    n_bytes: int = 0
    needs: Collection[str] = ()
    done: Callable[[bool], None] | None = None


class Writer:
    """Does jobs in the order they come. A file that cannot be written is given up, and with it every later
    file that needs it; the first of them is logged, and the first after one that could be written."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._over: queue.SimpleQueue[tuple[Callable[[bool], None], bool]] = queue.SimpleQueue()
        self._n_queued_bytes = 0  # of the putting thread
        self._n_done_bytes = 0  # of the writing thread; each is changed by one thread alone
        self._failed: set[str] = set()
        self._has_told = False
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

    def settle(self) -> None:
        """Tell of the jobs that are over, on the thread that calls."""
        while not self._over.empty():
            tell, is_done = self._over.get()
            tell(is_done)

    def wait(self) -> None:
        """Return when all that was put is over and told of."""
        self._jobs.join()
        self.settle()

    def close(self) -> None:
        """Finish what was put, then end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self.settle()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            is_done = self._do(job)
            self._n_done_bytes += job.n_bytes
            if job.done is not None:
                self._over.put((job.done, is_done))
            self._jobs.task_done()
        self._jobs.task_done()

    def _do(self, job: Job) -> bool:
        try:
            if job.content is None:
                job.path.unlink(missing_ok=True)
                return True
            if self._failed.isdisjoint(job.needs):
                blob.write(job.path, job.content())
                self._failed.discard(job.path.name)
                self._has_told = False
                return True
        except Exception as error:  # the thread must live: who waits for it would wait for ever
            if not self._has_told:
                log.warning("cannot write the cache folder, conversations stay in memory: %s", error)
            self._has_told = True
        self._failed.add(job.path.name)
        return False
