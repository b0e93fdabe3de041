"""What the process gets of the machine: cores, memory, and how malloc keeps it. Must not import MLX."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of freed memory for the next arrays.

    MLX's CPU backend takes every array from malloc, which by default gives the larger ones back to the
    system at once: a prefill then spends a fifth of its time in page faults.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def n_usable_cores() -> int:
    """Cores this process may keep busy: those it may run on, or what its cgroups' quotas come to."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, _quotas())]))


def usable_memory() -> int:
    """Bytes this process may take: the machine's, or what the tightest of its cgroups allows."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *_limits()])


def available_memory() -> int:
    """Bytes this process could still take: what is free in the machine, and in its cgroups."""
    free = {name: int(kib) << 10 for name, kib in _pairs(_MEMORY)}.get("MemAvailable:", usable_memory())
    left = [free]
    for version, folder in _own_cgroups("memory"):
        if version == 2 and (limit := _read(folder / "memory.max")).isdigit():
            used = int(_read(folder / "memory.current") or 0)
            # What files left in the cache goes when it is wanted.
            cached = {name: int(n) for name, n in _pairs(folder / "memory.stat")}.get("inactive_file", 0)
            left.append(int(limit) - used + cached)
    return max(0, min(left))


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """The first two words of each line of a file."""
    for line in _read(path).splitlines():
        name, number, *_ = (*line.split(), "", "")
        if number.isdigit():
            yield name, number


def _limits() -> Iterator[int]:
    for version, folder in _own_cgroups("memory"):
        text = _read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if text.isdigit():  # else "max"
            yield int(text)


def _quotas() -> Iterator[float]:
    for version, folder in _own_cgroups("cpu"):
        if version == 2:
            quota, period = (*_read(folder / "cpu.max").split(), "", "")[:2]
        else:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # else "max", or -1
            yield int(quota) / int(period)


def _own_cgroups(controller: str) -> Iterator[tuple[int, Path]]:
    """The version and the folder of each cgroup that bounds this process, up to the root.

    Inside a container the root may be mounted in the place of the process's own group: a path that is not
    there is passed over.
    """
    for line in _read(_OWN_CGROUPS).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        own = root / path.strip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                yield 1 if controllers else 2, folder


def _read(path: Path) -> str:
    """The text of a file of the kernel's; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
